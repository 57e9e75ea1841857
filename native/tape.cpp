#include "tape.h"

#include <algorithm>
#include <stdexcept>

namespace headrace {

namespace {

// Whether each row of the result depends on the same row of the operands, and on nothing else.
bool is_by_rows(const Work& work) {
    return std::holds_alternative<RmsNorm>(work) || std::holds_alternative<Add>(work) || std::holds_alternative<Project>(work) ||
           std::holds_alternative<GatedProject>(work);
}

// The norm that a product's rows may pass through; null if it is no product.
Norm* norm_of(Work& work) {
    if (auto* project = std::get_if<Project>(&work)) return &project->norm;
    if (auto* gated = std::get_if<GatedProject>(&work)) return &gated->norm;
    return nullptr;
}

// Whether the result may lie where `other` lay: each number of it is read by who writes over it.
bool may_replace_other(const Work& work) {
    return std::holds_alternative<Add>(work) || std::holds_alternative<Project>(work);
}

}  // namespace

int Tape::add_value(bool is_selected, int columns, bool is_dense) {
    Value value{};
    value.is_selected = is_selected;
    value.is_dense = is_dense;
    value.columns = columns;
    values_.push_back(value);
    return int(values_.size()) - 1;
}

void Tape::append(const Operation& operation) { operations_.push_back(operation); }

int Tape::num_uses(int value) const {
    int uses = value == result_;
    for (const Operation& op : operations_) uses += (op.input == value) + (op.other == value);
    return uses;
}

int Tape::producer_of(int value) const {
    for (size_t i = 0; i < operations_.size(); ++i)
        if (operations_[i].output == value) return int(i);
    return -1;
}

// The selected rows of a value, as a value: selected before that operation, and only once.
int Tape::selected(int value, size_t before) {
    const auto place = [&] { return operations_.begin() + int64_t(before); };
    const auto selects_it = [&](const Operation& op) { return std::holds_alternative<SelectRows>(op.work) && op.input == value; };
    const auto found = std::find_if(operations_.begin(), operations_.end(), selects_it);
    if (found != operations_.end()) {
        if (found > place()) std::rotate(place(), found, found + 1);
        return found < place() ? found->output : place()->output;
    }
    const int output = add_value(true, columns_of(value), values_[size_t(value)].is_dense);
    operations_.insert(place(), {SelectRows{}, value, -1, output});
    return output;
}

// Moves one selection of rows before the operation that computes them; false if none can be moved.
bool Tape::select_earlier() {
    for (size_t i = operations_.size(); i-- > 0;) {
        if (!std::holds_alternative<SelectRows>(operations_[i].work)) continue;
        const int all = operations_[i].input, few = operations_[i].output;
        const int producer = producer_of(all);
        if (producer < 0 || !is_by_rows(operations_[size_t(producer)].work) || num_uses(all) != 1) continue;
        Operation moved = operations_[size_t(producer)];
        moved.output = few;
        operations_.erase(operations_.begin() + int64_t(i));
        operations_.erase(operations_.begin() + producer);
        size_t at = size_t(producer);  // behind the selections that it needs
        for (int* operand : {&moved.input, &moved.other}) {
            if (*operand < 0) continue;
            *operand = selected(*operand, at);
            while (at < operations_.size() && std::holds_alternative<SelectRows>(operations_[at].work)) ++at;
        }
        operations_.insert(operations_.begin() + int64_t(at), moved);
        return true;
    }
    return false;
}

void Tape::fuse_norms() {
    for (size_t i = 0; i < operations_.size(); ++i) {
        const RmsNorm* norm = std::get_if<RmsNorm>(&operations_[i].work);
        if (!norm || num_uses(operations_[i].output) != 1) continue;
        for (size_t j = i + 1; j < operations_.size(); ++j) {
            if (operations_[j].input != operations_[i].output) continue;
            if (Norm* of_product = norm_of(operations_[j].work)) {
                *of_product = norm->norm;
                operations_[j].input = operations_[i].input;
                operations_[i].output = -1;  // nobody's
            }
            break;
        }
    }
    operations_.erase(std::remove_if(operations_.begin(), operations_.end(), [](const Operation& op) { return op.output < 0; }),
                      operations_.end());
}

// First fit, by the order of the operations.
void Tape::lay_out() {
    const size_t num_values = values_.size();
    std::vector<size_t> last_use(num_values, 0);
    for (size_t i = 0; i < operations_.size(); ++i) {
        for (int value : {operations_[i].input, operations_[i].other, operations_[i].output})
            if (value >= 0) last_use[size_t(value)] = i;
    }
    std::vector<int> living[2];  // by offset
    for (size_t i = 0; i < operations_.size(); ++i) {
        const Operation& op = operations_[i];
        Value& made = values_[size_t(op.output)];
        auto& neighbours = living[made.is_selected];
        const bool takes_over = op.other >= 0 && op.other != op.input && may_replace_other(op.work) &&
                                last_use[size_t(op.other)] == i && op.output != result_ &&
                                values_[size_t(op.other)].is_selected == made.is_selected &&
                                values_[size_t(op.other)].floats_per_row() == made.floats_per_row() &&
                                values_[size_t(op.other)].is_dense == made.is_dense;
        if (takes_over) {
            made.offset = values_[size_t(op.other)].offset;
            std::replace(neighbours.begin(), neighbours.end(), op.other, op.output);
        } else if (op.output != result_) {
            size_t at = 0;
            auto place = neighbours.begin();
            for (; place != neighbours.end() && values_[size_t(*place)].offset < at + made.floats_per_row(); ++place)
                at = values_[size_t(*place)].offset + values_[size_t(*place)].floats_per_row();
            made.offset = at;
            neighbours.insert(place, op.output);
            size_[made.is_selected] = std::max(size_[made.is_selected], at + made.floats_per_row());
        }
        for (auto& alive : living)
            alive.erase(std::remove_if(alive.begin(), alive.end(), [&](int v) { return last_use[size_t(v)] <= i; }), alive.end());
    }
}

void Tape::finish(int result) {
    if (result < 0 || !is_selected(result)) throw std::invalid_argument("a tape ends with a value of selected rows");
    result_ = result;
    while (select_earlier()) {
    }
    fuse_norms();
    lay_out();
}

void Tape::replay(Machine& machine, const Step& step, const Matrix& result) {
    const int num_rows[2] = {step.num_tokens, step.num_selected};
    float* base[2];
    for (int kind = 0; kind < 2; ++kind) base[kind] = (float*)scratch_[kind].reserve(size_[kind] * size_t(num_rows[kind]) * 4);
    matrices_.resize(values_.size());
    for (size_t v = 0; v < values_.size(); ++v) {
        const Value& value = values_[v];
        const int rows = num_rows[value.is_selected];
        matrices_[v] = {base[value.is_selected] + value.offset * size_t(rows), rows, value.columns,
                        row_stride(value.columns, value.is_dense)};
    }
    matrices_[size_t(result_)] = result;
    for (const Operation& operation : operations_) machine.run(operation, matrices_.data(), step);
}

}  // namespace headrace
