"""Writes tests/data/template_expectations.jsonl: what the Python side makes of templates, for tests/promises/templates.rs.

Needs the packages transformers and jinja2. Run from the repository's root:
    python3 tests/assets/make_template_expectations.py
"""

import json
import pathlib

import jinja2
from transformers.utils.chat_template_utils import _compile_jinja_template, _render_with_assistant_indices

DATA = pathlib.Path("tests/data")

TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "Temperature & wind <now>, in °C",
     "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 1}}, "required": ["city"]}}},
    {"type": "function", "function": {"name": "sum", "parameters": {"type": "object", "properties": {}}, "strict": True, "limit": 1e-7, "none": None}},
]
CALL = {"role": "assistant", "tool_calls": [{"id": "abcdef123", "type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich", "days": 2}}}]}
CONVERSATIONS = {
    "one": [{"role": "user", "content": "What is 2+2?"}],
    "system": [{"role": "system", "content": "  Be brief.\n"}, {"role": "user", "content": "hi\n"}],
    "answered": [{"role": "user", "content": "What is 2+2?"}, {"role": "assistant", "content": "<think>Let me calculate this.</think>\n\nThe answer is 4."}],
    "history": [{"role": "user", "content": "u1"}, {"role": "assistant", "content": "<think>\nt1\n</think>\n\na1"}, {"role": "user", "content": "u2"}],
    "reasoning": [{"role": "user", "content": "u1"}, {"role": "assistant", "reasoning_content": "R\n", "content": "A"}],
    "tools": [{"role": "user", "content": "weather?"}, CALL, {"role": "tool", "content": "{\"t\": 21.5}"}, {"role": "assistant", "content": "Mild."}, {"role": "user", "content": "ok"}],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "look: "}, {"type": "image"}, {"type": "text", "text": "안녕 🙂"}]}],
    "two users": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
    "odd role": [{"role": "user", "content": "a"}, {"role": "critic", "content": "b"}],
    "whitespace": [{"role": "user", "content": "  indented\n\ttabbed  \r\n"}, {"role": "assistant", "content": "\n\nx\n"}, {"role": "user", "content": ""}],
}
VARS = {
    "t": {"b": 1, "a": [1, 2.5, True, False, None], "é": "x/y—<&>'\"\\\n\t\x01\x7f", "deep": {"empty": {}, "list": [], "in": [{"k": "v"}]}},
    "floats": [0.1, 1.0, -0.0, 1e16, 1e15, 123456789012345680.0, 1e-4, 1e-5, 1.5e-7, 1e22, 1e300, 5e-324, 3.141592653589793, 100000.0],
    "ints": [0, -1, 9223372036854775807, 18446744073709551615],
    "emoji": "🙂 é",
    "text": "  Hello World, hello  ",
    "lines": "a\nb\n\nc\n",
    "nothing": None, "yes": True, "no": False, "n": 7, "f": 2.5, "word": "word",
    "people": [{"name": "B", "age": 3}, {"name": "a", "age": 1}, {"name": "C", "age": 2}],
    "args": "{\"b\": 1, \"a\": [1.0, null, \"x\"]}",
}
SNIPPETS = """
{{ t | tojson }}
{{ t | tojson(indent=2) }}
{{ t | tojson(indent=4, sort_keys=true) }}
{{ t | tojson(ensure_ascii=true) }}
{{ t | tojson(true) }}
{{ t | tojson(separators=(',', ':')) }}
{{ t | tojson(false, 2, (';', '=')) }}
{{ t | tojson(indent=0) }}
{{ floats | tojson }}
{{ ints | tojson }}
{{ emoji | tojson(ensure_ascii=True) }}{{ emoji | tojson }}
{{ {1: 'a', true: 'b', none: 'c', 2.5: 'd'} | tojson }}
{{ (1, 'a') | tojson }}{{ [] | tojson }}{{ {} | tojson(indent=2) }}
{{ missing | tojson }}
{{ floats[3] }} {{ floats[7] }} {{ 1e3 }} {{ 7 / 2 }} {{ 8 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 2 ** 8 }}
{{ yes }} {{ no }} {{ nothing }} [{{ missing }}] {{ n }} {{ f }}
{{ t.a }} {{ people[0] }} {{ ['x', "it's", 'q"'] }} {{ ('a',) }} {{ (1, 2) }} {{ {} }} {{ [] }}
{{ 'a' ~ yes ~ nothing ~ f ~ n ~ [1, 'x'] }}
{{ yes | string }} {{ nothing | string }} {{ f | string + '!' }} {{ [1, 'a'] | string }}
{{ [yes, nothing, 1, 2.0, 'x'] | join(', ') }}
{{ text.strip() }}|{{ text.lstrip() }}|{{ text.rstrip() }}|{{ text | trim }}|{{ 'xxaxx'.strip('x') }}|{{ '\\n\\na\\n'.strip('\\n') }}
{{ text.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ 'a</think>b'.split('</think>')[-1] }} {{ 'abc'.split('x') }}
{{ 'a,b,c'.split(',', maxsplit=1) }} {{ ' a  b c '.split(None, 1) }} {{ ' a  b c '.rsplit(None, 1) }} {{ ''.split() }} {{ ''.split(',') }}
{{ 'a=b=c'.partition('=') }} {{ 'a=b=c'.rpartition('=') }} {{ 'abc'.partition('x') }}
{{ 'Hello'.startswith('He') }} {{ 'Hello'.endswith(('lo', 'x')) }} {{ 'Hello'.startswith(('a', 'H')) }} {{ 'a' in 'abc' }} {{ 'x' not in 'abc' }}
{{ 'hello world'.title() }} {{ 'hello'.capitalize() }} {{ 'HeLLo'.lower() }} {{ 'HeLLo'.upper() }} {{ 'hello' | capitalize }} {{ 'hello world' | title }}
{{ 'prefix-x'.removeprefix('prefix-') }} {{ 'x.py'.removesuffix('.py') }} {{ 'abcabc'.replace('b', 'X') }} {{ 'abcabc'.replace('b', 'X', 1) }} {{ 'abc' | replace('b', '') }}
{{ 'hello'.find('l') }} {{ 'hello'.rfind('l') }} {{ 'hello'.find('z') }} {{ 'hello'.index('l') }} {{ 'hello'.count('l') }}
{{ '7'.zfill(3) }} {{ 'a'.ljust(3) }}| {{ 'a'.rjust(3, '*') }} {{ 'abc'.isalpha() }} {{ '12'.isdigit() }} {{ '-'.join(['a', 'b']) }}
{{ '{} and {}'.format('a', 1) }} {{ '%s is %d' | format('x', 3) }} {{ '{0}{x}'.format(1, x=2) }}
{{ lines.splitlines() }} {{ lines.split('\\n') }} {{ lines | indent(2) }}|{{ lines | indent(2, true) }}|{{ lines | indent }}
{{ people | map(attribute='name') | list }} {{ people | map(attribute='name') | join(',') }} {{ ['a', 'b'] | map('upper') | list }}
{{ people | selectattr('age', 'equalto', 2) | list }} {{ people | rejectattr('age', 'gt', 1) | map(attribute='name') | list }} {{ people | selectattr('missing', 'defined') | list }}
{{ people | sort(attribute='age') | map(attribute='name') | list }} {{ ['b', 'A', 'c'] | sort }} {{ [3, 1, 2] | sort(reverse=true) }} {{ ['a', 'b', 'a'] | unique | list }}
{{ [1, 2, 3] | first }} {{ [1, 2, 3] | last }} {{ [1, 2, 3] | sum }} {{ [1, 2, 3] | max }} {{ [1, 2, 3] | reverse | list }} {{ 'abc' | reverse }} {{ 'abc' | list }}
{{ [1, 2, 3, 4, 5][::-1] }} {{ [1, 2, 3, 4, 5][1:3] }} {{ [1, 2, 3, 4, 5][-2:] }} {{ [1, 2, 3, 4, 5][:-1] }} {{ [1, 2, 3, 4, 5][::2] }} {{ 'hello'[1:-1] }} {{ 'hello'[::-1] }} {{ 'hello'[-1] }} {{ [1, 2][5:] }}
{{ missing | default('d') }} {{ '' | default('d') }} {{ '' | default('d', true) }} {{ nothing | default('d') }} {{ nothing or 'd' }} {{ '' or 'e' }} {{ 'a' and 'b' }}
{{ missing is defined }} {{ nothing is none }} {{ nothing is defined }} {{ missing is none }} {{ not missing }} {{ missing is undefined }}
{{ 'a' is string }} {{ 'a' is iterable }} {{ 'a' is sequence }} {{ 'a' is mapping }} {{ [] is iterable }} {{ [] is sequence }} {{ {} is sequence }} {{ {} is iterable }} {{ {} is mapping }} {{ [] is mapping }}
{{ 1 is iterable }} {{ 1 is sequence }} {{ nothing is iterable }} {{ missing is iterable }} {{ nothing is sequence }} {{ 1 is number }} {{ true is number }} {{ 1.0 is float }} {{ 1 is integer }} {{ true is integer }} {{ true is boolean }} {{ true is true }} {{ 1 is true }}
{{ 3 is odd }} {{ 4 is even }} {{ 6 is divisibleby 3 }} {{ 'A' is upper }} {{ 'a' is lower }} {{ 1 is eq 1 }} {{ 1 in [1, 2] }} {{ 'k' in {'k': 1} }} {{ 1 is in [1] }} {{ 'a' is sameas 'a' }}
{{ 'x' in missing }} {{ missing | length }} {{ missing | list }}{% for x in missing %}x{% endfor %}
{{ missing.field }}
{{ people[0].missing }}|{{ people[9] }}|{{ people[0]['nope'] }}
{{ nothing.field }}
{{ {'a': 1}.get('a') }} {{ {'a': 1}.get('b') }} {{ {'a': 1}.get('b', 2) }} {{ {'a': 1, 'b': 2}.keys() | list }} {{ {'a': 1}.values() | list }} {{ {'a': 1}.items() | list }} {{ {'b': 1, 'a': 2} | dictsort }} {{ {'a': 1} | items | list }}
{% for k, v in t.deep.items() %}{{ k }}:{{ v }};{% endfor %} {% for k in t %}{{ k }},{% endfor %} {% for k, v in people[0] | items %}{{ k }}={{ v }} {% endfor %}
{% for x in [1, 2, 3] %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }} {% else %}none{% endfor %}
{% for x in [] %}x{% else %}none{% endfor %}{% for x in [1, 2, 3, 4] if x is even %}{{ x }}{{ loop.index }}{% endfor %}{% for x in [1, 1, 2] %}{{ loop.changed(x) }}{{ loop.cycle('a', 'b') }}{% endfor %}
{% for i in range(3) %}{{ i }}{% endfor %}{% for i in range(1, 8, 3) %}{{ i }}{% endfor %}{% for i in range(3, 0, -1) %}{{ i }}{% endfor %}
{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i > 4 %}{% break %}{% endif %}{{ i }}{% endfor %}
{% set ns = namespace(x=0, items=[]) %}{% for i in range(3) %}{% set ns.x = ns.x + i %}{% set ns.items = ns.items + [i] %}{% endfor %}{{ ns.x }}{{ ns.items }}
{% set x = 1 %}{% if true %}{% set x = 2 %}{% endif %}{{ x }}{% for i in [1] %}{% set x = 3 %}{% endfor %}{{ x }}{% with x = 4 %}{{ x }}{% endwith %}{{ x }}
{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}
{% set text %}block{{ n }}{% endset %}{{ text | upper }}{% filter upper %}abc{{ word }}{% endfilter %}
{% macro m(a, b='d', c=none) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m('x', c='y') }}{{ m() }}
{% macro fact(k) %}{% if k <= 1 %}1{% else %}{{ k }}*{{ fact(k - 1) }}{% endif %}{% endmacro %}{{ fact(4) }}
{% macro outer() %}{{ inner() }}{% endmacro %}{% macro inner() %}in{% endmacro %}{{ outer() }}
{% macro uses() %}{{ later }}{{ n }}{% endmacro %}{% set later = 'L' %}{{ uses() }}
{% macro wrap() %}<{{ caller() }}>{% endmacro %}{% call wrap() %}x{{ n }}{% endcall %}{% macro each(xs) %}{% for x in xs %}{{ caller(x) }}{% endfor %}{% endmacro %}{% call(x) each([1, 2]) %}({{ x }}){% endcall %}
{{ 'yes' if yes else 'no' }} {{ 'yes' if no }}| {{ 1 if no else 2 if no else 3 }} {{ not yes }} {{ 1 == 1.0 }} {{ 'a' != 'b' }} {{ 1 < 2 <= 2 }} {{ nothing == none }} {{ [1] == [1] }} {{ {'a': 1} == {'a': 1} }} {{ 1 == '1' }}
{{ 1 + 2 * 3 - 4 }} {{ 'a' + 'b' }} {{ 'ab' * 2 }} {{ [1] + [2] }} {{ -n }} {{ n % 4 }} {{ '5' | int + 1 }} {{ 'x' | int(9) }} {{ '2.5' | float }} {{ 3.7 | int }} {{ 2.567 | round(1) }} {{ 2.5 | round }} {{ -3 | abs }}
{{ 'a' + 1 }}
{{ 'a' + nothing }}
{{ nothing + 'a' }}
{{ missing + 'a' }}
{{ 'a' + missing }}
{{ yes + 'a' }}
{{ raise_exception('no: ' ~ n) }}
{{ unknown_function() }}
{{ '\\u2581\\x41\\t|\\\\|\\'|"' }} {{ "a\\"b" }} {{ '\u2581' }}
{# comment #}a{#- trimmed -#} b {{- ' c' -}} d {%- if true -%} e {%- endif %} f
{% raw %}{{ not }}{% generation %}{% endraw %}{{ '{% generation %}' }}{# {% generation %} #}
{{ dict(a=1, b=2) }} {{ dict(a=1)['a'] }} {{ [1, 2, 3, 4] | batch(2) | list }} {{ people | groupby('age') | map('first') | list }}
{{ ['a', 'b'].index('b') }} {{ [1, 1, 2].count(1) }} {{ 'a'.lower().upper() }} {{ 'Ab' | lower | upper | length }} {{ [[1, 2], [3]] | map('length') | list }}
{{ 'x'.nope() }}
{{ people | tojson(indent=2) | indent(4) }}
{{ '<b>&"' | e }} {{ '<b>' | safe }} {{ 'a\\n\\nb' | indent(2, blank=true) }} {{ '' | indent(2, true) }}|{{ 'a\\nb' | indent(width='> ', first=true) }}
{% set j = joiner('|') %}{{ j() }}a{{ j() }}b{% set c = cycler('x', 'y') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}
{{ "two " "parts" }}
{{ [x for x in y] }}
{% if yes and n > 3 and 'a' in word or no %}t{% elif no %}u{% else %}v{% endif %}
{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set p = (3, 4) %}{{ p[0] }}{% for a, b in [(1, 2), (3, 4)] %}{{ a + b }}{% endfor %}
{{ people | map(attribute='age') | map('string') | join('-') }} {{ people | length }} {{ people | count }} {{ t | length }}
{{ 'a' < 'b' }} {{ 'Z' < 'a' }} {{ [1, 2] < [1, 3] }} {{ 7 is gt 3 }} {{ people | min(attribute='age') }}
{{ text | upper | trim }} {{ text | replace('l', 'L') | trim }} {{ text.strip().split(' ')[0] }} {{ text[2:7] }}
{{ {'a': none}.get('a', 1) }} {{ {'a': 1}.copy() }}
{{ missing is sequence }} {{ '  a b  '.split() }} {{ ' a  b c '.rsplit(None, 5) }} {{ 'a b'.split(' ', -1) }}
""".strip("\n").split("\n")
# Whitespace around blocks, one template over several lines each.
LAYOUTS = [
    "a\n{% if true %}\n  b\n{% endif %}\nc\n",
    "a\n    {% if true %}\n  b\n    {% endif %}  \nc\n\n",
    "  {{ 'x' }}\n  {%- if true %}\n  y\n  {% endif -%}\n  z",
    "a\n  {# comment #}\nb {# inline #} c\n  {#- c -#}  \nd",
    "{% for x in [1, 2] %}\n- {{ x }}\n{% endfor %}\nend\n",
    "{% for x in [1, 2] %}\n    {%- if x == 1 %}\n        {{- 'one' }}\n    {%- else %}\n        {{- 'other' }}\n    {%- endif %}\n{%- endfor %}",
    "  {%+ if true %}\n x\n  {%+ endif +%}\n y",
    "a\n{% generation %}\nb\n{% endgeneration %}\nc",
    "a\n  {%- generation %}\n  b  \n  {% endgeneration -%}\n  c",
    "{% if true %}{% generation %}a{% endgeneration %}{% endif %}",
    "{%- generation -%} x {%- endgeneration -%}",
    "{% for i in [1, 2] %}{%generation%}{{ i }}{%endgeneration%},{% endfor %}",
    "\r\na\r\n{% if true %}\r\nb\r\n{% endif %}\r\nc",
    "{% set x = 'a\nb' %}{{ x }}\n\n\n",
    "{% macro m() %}\n  in\n{% endmacro %}\n{{ m() }}\n{{ m() -}}\n\n.",
    "{% raw %}\n {% if %}\n{% endraw %}\nx",
    "{% if true %}   \n x\n{% endif %}\t\ny",
]
EXTRAS = {
    "qwen3_style": [{}, {"tools": TOOLS}, {"enable_thinking": False}],
    "llama3_style": [{}, {"tools": TOOLS, "date_string": "01 Jan 2026"}],
    "alternating_style": [{}, {"tools": TOOLS}],
    "generation_style": [{}, {"xml_tools": [{"name": "f", "parameters": {"properties": {"a": {"type": "array", "items": {"type": "integer"}}, "b": {"type": ["string", "null"]}, "c": {}}}}]}],
    "think_prefill_style": [{}],
}
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


def expectation(source, messages, add_generation_prompt, extra):
    row = {"messages": messages, "add_generation_prompt": add_generation_prompt, "extra": extra}
    try:
        template = _compile_jinja_template(source)
        variables = {"tools": None, "documents": None, **SPECIAL, **extra}
        row["expected"] = template.render(messages=messages, add_generation_prompt=add_generation_prompt, **variables)
        if "endgeneration" in source and "raw" not in source:
            text, spans = _render_with_assistant_indices(template, messages, variables.pop("tools"), variables.pop("documents"), add_generation_prompt, **variables)
            assert text == row["expected"]
            row["generation"] = [text[start:end] for start, end in spans]
    except jinja2.exceptions.TemplateSyntaxError:
        row["broken"] = True
    except jinja2.exceptions.TemplateError as error:
        row["fails"] = str(error)
    except Exception as error:
        row["fails"] = f"{type(error).__name__}: {error}"
    return row


rows = []
for number, snippet in enumerate(SNIPPETS):
    rows.append({"name": f"snippet {number}", "template": snippet, **expectation(snippet, [], False, VARS)})
for number, layout in enumerate(LAYOUTS):
    rows.append({"name": f"layout {number}", "template": layout, **expectation(layout, [], False, {})})
for style, extras in EXTRAS.items():
    source = (DATA / "templates" / f"{style}.jinja").read_text()
    for name, messages in CONVERSATIONS.items():
        for extra in extras:
            for add_generation_prompt in (False, True):
                label = f"{style}, {name}, {list(extra)}, {add_generation_prompt}"
                rows.append({"name": label, "file": style, **expectation(source, messages, add_generation_prompt, extra)})
for row in rows:
    if row.get("extra") is VARS:
        row["extra"] = "VARS"
lines = [json.dumps({"name": "VARS", "extra": VARS}, ensure_ascii=False)] + [json.dumps(row, ensure_ascii=False) for row in rows]
(DATA / "template_expectations.jsonl").write_text("\n".join(lines) + "\n")
print(len(rows), "rows,", sum("fails" in row for row in rows), "fail,", sum("broken" in row for row in rows), "broken")
