"""Whether an answer is stuck: its end is one pattern of tokens, several times in a row. Knows token ids only."""

from headrace.engine.mind.sequence import SequenceState


def is_stuck(sequence: SequenceState) -> bool:
    """Asked after each token, so a repetition ends the answer with the token that completes it."""
    watched = sequence.sampling.repetition_detection
    if watched is None:
        return False
    tokens, num_answered = sequence.output_token_ids, sequence.num_output_tokens
    last = tokens[-1]
    for size in range(watched.min_pattern_size, watched.max_pattern_size + 1):
        num_repeated = size * watched.min_count
        if num_repeated > num_answered:
            return False
        # The end equals itself one pattern earlier; nearly always the last token says at once that it does not.
        if tokens[-1 - size] == last and tokens[-num_repeated:-size] == tokens[-num_repeated + size :]:
            return True
    return False
