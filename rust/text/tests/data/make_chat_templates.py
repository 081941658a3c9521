"""Renders chat templates with transformers and records the results as the golden corpus.

    python rust/text/tests/data/make_chat_templates.py [--templates DIR] [--output FILE]

Without arguments it rewrites `chat_templates.json` beside this file. With `--templates DIR` it renders every
`*.jinja` file of DIR with the same conversations instead (set FRIZZEN_TEST_TEMPLATES to the output when running the
Rust test). All templates below were written for this corpus, each in the manner of a family of models.
"""

import argparse
import json
from datetime import datetime
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

NOW = datetime(2024, 7, 26, 9, 5, 3)
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather in a city — now & here <b>",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Città, e.g. \"Zürich\""},
                "days": {"type": "integer", "default": 3, "minimum": 0.5},
                "tags": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}},
            },
            "required": ["city"],
        },
    },
}
TIME = {"type": "function", "function": {"name": "now", "description": "Time", "parameters": {"type": "object", "properties": {}}}}

USER = {"role": "user", "content": "What is 2+2?"}
SYSTEM = {"role": "system", "content": "Be brief."}
CALL = {
    "role": "assistant",
    "tool_calls": [
        {"id": "call00001", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Zürich", "days": 2}}},
        {"id": "call00002", "type": "function", "function": {"name": "now", "arguments": {}}},
    ],
}
RESULTS = [
    {"role": "tool", "tool_call_id": "call00001", "name": "get_weather", "content": '{"t": 21.5}'},
    {"role": "tool", "tool_call_id": "call00002", "name": "now", "content": "09:05"},
]
THOUGHT = {"role": "assistant", "content": "<think>\nTwo and two.\n</think>\n\nIt is 4."}

CONVERSATIONS: dict[str, dict[str, Any]] = {
    "user": {"messages": [USER]},
    "user-no-prompt": {"messages": [USER], "add_generation_prompt": False},
    "system": {"messages": [SYSTEM, USER]},
    "turns": {"messages": [SYSTEM, USER, {"role": "assistant", "content": " 4 "}, {"role": "user", "content": "  And\n3+3?\n"}]},
    "unicode": {"messages": [{"role": "user", "content": "\u4f60\u597d \"\U0001f642\" <|x|> it's\ta\\b & <c>"}]},
    "tools": {"messages": [SYSTEM, {"role": "user", "content": "Weather?"}], "tools": [WEATHER, TIME]},
    "tool-results": {"messages": [{"role": "user", "content": "Weather?"}, CALL, *RESULTS], "tools": [WEATHER, TIME]},
    "reasoning": {"messages": [USER, THOUGHT, {"role": "user", "content": "Sure?"}]},
    "reasoning-field": {
        "messages": [USER, {"role": "assistant", "content": "4", "reasoning": "Two and two."}, {"role": "user", "content": "Sure?"}]
    },
    "no-thinking": {"messages": [USER], "kwargs": {"enable_thinking": False, "thinking": False}},
    "continue": {
        "messages": [USER, {"role": "assistant", "content": "The answer is"}],
        "add_generation_prompt": False,
        "continue_final_message": True,
    },
    "continue-spaces": {
        "messages": [USER, {"role": "assistant", "content": "  The answer is:  "}],
        "add_generation_prompt": False,
        "continue_final_message": True,
    },
    "assistant-first": {"messages": [{"role": "assistant", "content": "Hi!"}, USER]},
    "empty": {"messages": [{"role": "user", "content": "A"}, {"role": "assistant", "content": ""}, {"role": "user", "content": "B"}]},
    "documents": {"messages": [USER], "documents": [{"title": "T", "text": "Some text."}, {"title": "U", "text": "More."}]},
}

TEMPLATES: dict[str, str] = {
    "chatml": """{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    "chatml-default-system": """{%- if messages[0].role != 'system' %}
<|im_start|>system
You are helpful.<|im_end|>
{%- endif %}
{% for m in messages %}
    {%- if loop.first or loop.previtem.role != m.role %}
<|im_start|>{{ m.role }}
    {%- endif %}
{{ m.content | trim }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif %}""",
    "instruct-brackets": """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}""",
    "header-ids": """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not date_string is defined %}
    {%- set date_string = strftime_now("%d %b %Y") %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message + "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- for tool_call in message.tool_calls %}
            {%- set call = tool_call.function %}
            {{- '{"name": "' + call.name + '", "parameters": ' }}
            {{- call.arguments | tojson }}
            {{- "}" }}
        {%- endfor %}
        {{- "<|eot_id|>" }}
    {%- else %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
    "tools-in-xml": """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}
                    {{- '\\n' }}
                {%- endif %}
                {%- if tool_call.function %}
                    {%- set tool_call = tool_call.function %}
                {%- endif %}
                {{- '<tool_call>\\n{"name": "' }}
                {{- tool_call.name }}
                {{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}
                    {{- tool_call.arguments }}
                {%- else %}
                    {{- tool_call.arguments | tojson }}
                {%- endif %}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}""",
    "wide-bars": """{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% set ns = namespace(is_first=false, is_tool=false, is_output_first=true, system_prompt='') %}{%- for message in messages %}{%- if message['role'] == 'system' %}{% set ns.system_prompt = message['content'] %}{%- endif %}{%- endfor %}{{bos_token}}{{ns.system_prompt}}{%- for message in messages %}{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}{{'<｜User｜>' + message['content']}}{%- endif %}{%- if message['role'] == 'assistant' and message['tool_calls'] is defined %}{%- set ns.is_tool = false -%}{%- for tool in message['tool_calls']%}{%- if not ns.is_first %}{{'<｜Assistant｜><｜calls｜>' + tool['type'] + '<｜sep｜>' + tool['function']['name'] + '\\n' + '```json' + '\\n' + tool['function']['arguments']|tojson + '\\n' + '```' + '<｜end｜>'}}{%- set ns.is_first = true -%}{%- else %}{{'\\n' + tool['type'] + '<｜sep｜>' + tool['function']['name']}}{%- endif %}{%- endfor %}{{ '<｜calls_end｜>' }}{%- endif %}{%- if message['role'] == 'assistant' and message['tool_calls'] is not defined %}{%- if ns.is_tool %}{{'<｜outputs_end｜>' + message['content'] + '<｜eos｜>'}}{%- set ns.is_tool = false -%}{%- else %}{% set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{'<｜Assistant｜>' + content + '<｜eos｜>'}}{%- endif %}{%- endif %}{%- if message['role'] == 'tool' %}{%- set ns.is_tool = true -%}{%- if ns.is_output_first %}{{'<｜outputs｜>' + message['content']}}{%- set ns.is_output_first = false %}{%- else %}{{'\\n' + message['content']}}{%- endif %}{%- endif %}{%- endfor -%}{% if ns.is_tool %}{{'<｜outputs_end｜>'}}{% endif %}{% if add_generation_prompt and not ns.is_tool %}{{'<｜Assistant｜><think>\\n'}}{% endif %}""",
    "turn-markers": """{{ bos_token }}{%- if messages[0]['role'] == 'system' -%}{%- if messages[0]['content'] is string -%}{%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}{%- else -%}{%- set first_user_prefix = messages[0]['content'][0]['text'] + '\\n\\n' -%}{%- endif -%}{%- set loop_messages = messages[1:] -%}{%- else -%}{%- set first_user_prefix = "" -%}{%- set loop_messages = messages -%}{%- endif -%}{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}
                {{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\\n'}}
{%- endif -%}
""",
    "macros": """{%- macro render_type(spec) -%}
{%- if spec.type == 'array' -%}{{ render_type(spec['items']) }}[]{%- elif spec.enum is defined -%}{{ spec.enum | join('|') }}{%- else -%}{{ spec.type }}{%- endif -%}
{%- endmacro -%}
{%- macro turn(role, body='', end='<|end|>') %}<|{{ role }}|>{{ caller() if caller else body }}{{ end }}{% endmacro -%}
{%- for tool in tools or [] %}
type {{ tool.function.name }} = (_: {
{%- for name, spec in tool.function.parameters.properties.items() %}
{{ name }}{{ '' if name in (tool.function.parameters.required or []) else '?' }}: {{ render_type(spec) }}
{%- if spec.default is defined %}, // default: {{ spec.default }}{% endif %}
{%- endfor %}
});
{%- endfor %}
{% for m in messages -%}
{% call turn(m.role) %}{{ m.content | default('(none)', true) }}{% endcall %}
{% endfor -%}
{{ turn('assistant', end='') if add_generation_prompt }}""",
    "generation-blocks": """{%- for message in messages %}
{%- if message.role == 'assistant' %}
<|assistant|>
{% generation %}
    {%- set inner = message.content %}
{{- inner }}{{ eos_token }}
{%- endgeneration %}
{{ inner }}
{%- else %}
<|{{ message.role }}|>
{{ message.content }}
{%- endif %}
{%- endfor %}
{{- '\\n<|assistant|>\\n' if add_generation_prompt else '' }}""",
    "loop-controls": """{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{% if loop.index > 3 %}...{% break %}{% endif %}{{ loop.index }}/{{ loop.length }}/{{ loop.revindex }} {{ m.role[0]|upper }}: {{ m.content|default('-') }}
{% else %}empty{% endfor %}""",
    "filters": """{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list | tojson }}
{{ messages | rejectattr('role', 'in', ['user', 'tool']) | map(attribute='role') | join(', ') }}
{{ (messages | map(attribute='role') | unique | sort) | join('-') }}
{{ messages | groupby('role') | map('first') | join('/') }}
{{ (messages | last).role | capitalize }} {{ (messages | first)['role'] | title | replace('s', 'S') }}
{{ messages | length > 2 and 'long' or 'short' }}
{{ 'a,b,,c'.split(',') | select | list }} {{ [3, 1, 2] | sort(reverse=true) | join }} {{ [1, 2, 3, 4] | batch(2) | list }}
{% for k, v in {'b': 1, 'a': 2} | dictsort %}{{ k }}{{ v }}{% endfor %} {{ [1.5, 2] | sum }} {{ 7 | string | length }} {{ '%s=%.2f' | format('x', 1.5) }}
{{ 'line one\\nline two' | indent(4) }}|{{ 'WÖRD' | lower }}|{{ none is iterable }}{{ [] is iterable }}{{ unknown is iterable }}""",
    "rag": """{% if documents %}{% for doc in documents %}<doc id={{ loop.index0 }} title="{{ doc.title }}">{{ doc.text }}</doc>
{% endfor %}{% endif %}{{ messages[-1].content }}{{ pad_token }}{{ sep_token }}""",
    "parts-only": """{% for m in messages %}<{{ m.role }}>{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% else %}[{{ part.type }}]{% endif %}{% endfor %}</{{ m.role }}>{% endfor %}""",
    "filter-and-set-blocks": """{% set header %}  [{{ messages | length }}]  {% endset %}{{ header | trim }}
{% filter upper %}{% for m in messages %}{{ m.role }}: {{ m.content }};
{% endfor %}{% endfilter %}
{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a is defined }}
{% raw %}{{ not rendered }}{% endraw %}{# a comment #}
   {# another #}
{%+ if true %}kept{% endif +%}
end""",
    "json-documents": """{{ messages | tojson }}
{{ tools | tojson(indent=2) }}
{{ {'n': none, 't': true, 'f': 1.0, 'i': 12345678901, 'e': 1e20, 's': '\\u00e9\\n"/'} | tojson }}
{{ [1, [2, {'a': []}], {}] | tojson(indent=1) }}
{{ {'b': 1, 'a': 'é'} | tojson(ensure_ascii=true, sort_keys=true, separators=(',', ':')) }}""",
    "python-text": """{{ true }} {{ none }} {{ 1.0 }} {{ 1e16 }} {{ 1.5e-7 }} {{ [1, 'a"b', "it's", none, {'k': 2.5}] }} {{ tools }}
{{ 'x' ~ true ~ none ~ 1.0 }} {{ [true, none] | join(',') }} {{ {'a': [1]} | string }}
{{ undefined_name }}|{{ undefined_name is defined }}|{{ undefined_name | default('d') }}|{{ undefined_name | length }}|{{ 'a' in undefined_name }}
{{ messages[0].nothing }}|{{ messages[0].nothing is none }}|{{ messages[0]['role'].upper() }}
{{ 'text' is sequence }} {{ {} is sequence }} {{ 'text' is iterable }} {{ {} is mapping }} {{ 1 is number }}
{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 / 2 }} {{ -7 % 3 }} {{ 2 ** 10 }} {{ 1 if 2 > 1 else 0 }} {{ 'no' if false }}
{{ 'abcdef'[1:3] }} {{ 'abcdef'[::-1] }} {{ 'abcdef'[-2:] }} {{ [1, 2, 3][::-1] }} {{ [1, 2, 3][-1] }}
{{ '3'|int + '4.7'|int + 'x'|int(1) }} {{ '2.5'|float }} {{ 3.7|int }} {{ 2.5|round }} {{ 3.14159|round(2) }}""",
    "string-methods": """{% set s = '  Hello, Wörld hello  ' %}{{ s.strip() }}|{{ s.lstrip() }}|{{ s.rstrip() }}|{{ 'xxhixx'.strip('x') }}|{{ s.split() }}
{{ 'a b  c '.split(' ') }} {{ 'a-b-c'.split('-', 1) }} {{ 'a-b-c'.rsplit('-', 1) }} {{ 'a-b-c'.rsplit('-', maxsplit=1)[0] }} {{ ' a b c '.split(none, 1) }} {{ ' a b c '.rsplit(none, 1) }}
{{ 'a\\nb\\r\\nc\\n'.splitlines() }} {{ 'k=v=w'.partition('=')[2] }} {{ 'k=v=w'.rpartition('=')[0] }}
{{ 'prefix-x'.removeprefix('prefix-') }} {{ 'x.py'.removesuffix('.py') }} {{ 'Wörld'.find('l') }} {{ 'Wörld'.find('z') }} {{ 'Wörld'.index('d') }} {{ 'abcabc'.rfind('b') }}
{{ 'banana'.count('an') }} {{ 'abc'.count('') }} {{ '7'.zfill(3) }} {{ '-7'.zfill(4) }} {{ 'a'.ljust(3, '.') }} {{ 'a'.rjust(3, '.') }} {{ 'ab'.center(5, '*') }} {{ 'a'.center(4, '*') }}
{{ 'Ab'.swapcase() }} {{ ''.isdigit() }} {{ '12'.isdigit() }} {{ 'aB'.islower() }} {{ 'ab1'.islower() }} {{ '1'.isupper() }} {{ ' '.isspace() }} {{ 'é1'.isalnum() }}
{{ 'a.b'.replace('.', '-') }} {{ 'aaa'.replace('a', 'b', 2) }} {{ '-'.join(['a', 'b']) }} {{ '{} and {}'.format('a', 1) }} {{ "they're".title() }} {{ 'hELLO wORLD'.capitalize() }}
{{ 'abc'.startswith('ab') }} {{ 'abc'.startswith(('x', 'a')) }} {{ 'abc'.endswith('bc') }}
{{ {'a': 1}.get('a') }} {{ {'a': 1}.get('b') }} {{ {'a': 1}.get('b', 2) }} {% for k, v in {'x': 1, 'items': 2}.items() %}{{ k }}{{ v }}{% endfor %} {{ {'a': 1}.keys() | list }} {{ {'a': 1}.values() | list }}""",
    "dates": """{{ strftime_now('%Y-%m-%d') }} {{ strftime_now('%d %b %Y') }} {{ strftime_now('%A, %B %-d, %Y %I:%M %p') }}""",
}


def tokenizer_with(template: str) -> PreTrainedTokenizerFast:
    """A tokenizer without a vocabulary: only its template is used."""
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), chat_template=template, **SPECIAL)


def as_parts(message: dict[str, Any]) -> dict[str, Any]:
    """The message with its text as a list of one part."""
    text = message.get("content")
    return message | ({"content": [{"type": "text", "text": text}]} if text is not None else {})


def render(name: str, template: str, conversation: dict[str, Any]) -> dict[str, Any]:
    """The conversation with what transformers makes of it: `expected`, or `error` if it refuses."""
    case = {"add_generation_prompt": not conversation.get("continue_final_message", False), **conversation}
    arguments = {key: value for key, value in case.items() if key not in ("messages", "kwargs")}
    # A template that reads only parts is given parts here; the Rust side finds that out by itself.
    messages = [as_parts(m) if name == "parts-only" else dict(m) for m in case["messages"]]
    try:
        text = tokenizer_with(template).apply_chat_template(
            messages, tokenize=False, **arguments, **case.get("kwargs", {})
        )
    except Exception as error:  # noqa: BLE001 - any refusal is the recorded behaviour
        return case | {"error": str(error).splitlines()[0][:120] if str(error) else type(error).__name__}
    return case | {"expected": text}


def main() -> None:
    """Renders every template with every conversation."""
    here = Path(__file__).parent
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--templates", type=Path)
    parser.add_argument("--output", type=Path, default=here / "chat_templates.json")
    options = parser.parse_args()

    class FixedDatetime(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # noqa: ARG003
            return NOW

    chat_template_utils.datetime = FixedDatetime
    templates = TEMPLATES
    if options.templates:
        templates = {path.stem: path.read_text() for path in sorted(options.templates.glob("*.jinja"))}
    corpus = {
        "local_time": int((NOW - datetime(1970, 1, 1)).total_seconds()),
        "special_tokens": SPECIAL,
        "templates": templates,
        "cases": [
            {"name": f"{template}/{name}", "template": template, **render(template, source, conversation)}
            for template, source in templates.items()
            for name, conversation in CONVERSATIONS.items()
        ],
    }
    options.output.write_text(json.dumps(corpus, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
