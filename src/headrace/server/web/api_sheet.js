/** How to call this server from elsewhere: the base URL and examples to copy. Knows the API's words, calls nothing. */

import { baseUrl } from "./api.js";
import { renderCode } from "./markdown_view.js";

/** Fills the sheet for a model. Its name is data, quoted for JSON and the shell. */
export function fillApiSheet(model, needsKey) {
  const name = JSON.stringify(model);
  const authorization = needsKey ? `\n  -H "Authorization: Bearer $HEADRACE_API_KEY" \\` : "";
  const curl = `curl ${baseUrl()}/chat/completions \\
  -H 'Content-Type: application/json' \\${authorization}
  -d '{
    "model": ${name.replaceAll("'", "'\\''")},
    "messages": [{"role": "user", "content": "What is a mill wheel?"}]
  }'`;
  const key = needsKey ? 'os.environ["HEADRACE_API_KEY"]' : '"none"';
  const python = `${needsKey ? "import os\n\n" : ""}from openai import OpenAI

client = OpenAI(base_url="${baseUrl()}", api_key=${key})
answer = client.chat.completions.create(
    model=${name},
    messages=[{"role": "user", "content": "What is a mill wheel?"}],
)
print(answer.choices[0].message.content)`;
  show("api-base", baseUrl(), "base URL");
  show("api-curl", curl, "curl");
  show("api-python", python, "python");
  document.getElementById("api-base-short").textContent = baseUrl().replace(/^https?:\/\//, "");
}

function show(id, text, label) {
  document.getElementById(id).replaceChildren(renderCode(text, label));
}
