"""JSON that is read strictly and matches the schema of its row; nothing is fetched."""

import http.server
import json
import threading

import pytest

from grpo.errors import InputError
from grpo.rewards import find_rewards, json_schema
from grpo.rewards.json_schema import json_reward

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "pattern": "^[A-Z]"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name"],
    "additionalProperties": False,
}
RIGHT = [
    '{"name": "Ada", "age": 36}',
    '  {"name": "Ada"}\n',
    '```json\n{"name": "Ada"}\n```',
    '```\n{"name": "Ada"}\n```',
    'Here: ```x\n```json\n{"name": "Ada"}\n```\nDone.',
    '```json\n{"name": 1}\n```\nNo:\n```json\n{"name": "Ada"}\n```',
    '{"name": 1} <answer>{"name": "Ada"}</answer>',
    '<answer>```json\n{"name": "Ada"}\n```</answer>',
    '{"name": "A\\u0000\\ud800"}',
    '{"name": "A", "age": 1.0}',
    '{"name": "A[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["}',
]
WRONG = [
    "",
    "null",
    "Ada",
    "{}",
    '{"name": 1}',
    '{"name": "ada"}',
    '{"name": "Ada", "age": -1}',
    '{"name": "Ada", "age": true}',
    '{"name": "Ada", "age": "36"}',
    '{"name": "Ada", "age": NaN}',
    '{"name": "Ada", "age": Infinity}',
    '{"name": "Ada", "age": 1e999}',
    '{"name": "Ada", "age": 1' + "0" * 10_000 + "}",
    '{"name": "Ada", "more": 1}',
    '{"name": 1, "name": "Ada"}',
    '{"name": "Ada", "name": "Ada"}',
    '{"na\\u006de": 1, "name": "Ada"}',
    '[{"name": "Ada"}]',
    '{"name": "Ada"',
    '{"name": "Ada"}}',
    '{"name": "Ada"} {"name": "Ada"}',
    '{"name": "Ada"}, so',
    'So {"name": "Ada"}',
    "{'name': 'Ada'}",
    '{name: "Ada"}',
    '{"name": "Ada",}',
    '{"name": "Ada" /* x */}',
    '\ufeff{"name": "Ada"}',
    '```json\n{"name": "Ada"}\n```\n```json\n{"name": 1}\n```',
    '```yaml\n{"name": "Ada"}\n```',
    '<answer></answer>{"name": "Ada"}',
    '{"name": "Ada\n"}',
    '{"name": "A' + "a" * 100_000 + '"}',
]


def judge(completion: str, schema=PERSON, **options) -> float | None:
    return json_reward(completions=[completion], schema=[schema], workers=1, **options)[0]


@pytest.mark.parametrize("completion", RIGHT)
def test_json_of_the_schema(completion):
    assert judge(completion) == 1.0


@pytest.mark.parametrize("completion", WRONG)
def test_another_value_or_no_strict_json(completion):
    assert judge(completion) == 0.0


@pytest.mark.parametrize(
    "schema", [json.dumps(PERSON), PERSON | {"$schema": "http://json-schema.org/draft-07/schema#"}]
)
def test_a_schema_is_an_object_or_its_json_of_any_draft(schema):
    assert judge('{"name": "Ada"}', schema) == 1.0
    assert judge('{"name": "ada"}', schema) == 0.0


def test_drafts_differ():
    pair = {"items": [{"type": "integer"}, {"type": "string"}]}
    assert judge('["x", 1]', pair | {"$schema": "http://json-schema.org/draft-07/schema#"}) == 0.0
    with pytest.raises(InputError, match="is none"):
        judge('["x", 1]', pair)


def test_fifty_levels_are_enough():
    assert judge("[" * 50 + "]" * 50, {}) == 1.0
    assert judge("[" * 51 + "]" * 51, {}) == 0.0
    assert judge("[" * 90_000, {}) == judge('{"a":' * 10_000 + "1" + "}" * 10_000, {}) == 0.0


def test_references_lead_to_the_schema_itself_and_to_the_drafts():
    tree = {"type": "array", "items": {"$ref": "#"}, "maxItems": 2}
    assert judge("[[], [[]]]", tree) == 1.0
    assert judge("[[], [[], [], []]]", tree) == 0.0
    assert judge('{"type": "string"}', {"$ref": "https://json-schema.org/draft/2020-12/schema"}) == 1.0
    named = {"$id": "https://example.org/a", "$ref": "b", "$defs": {"b": {"$id": "b", "type": "integer"}}}
    assert (judge("1", named), judge("[]", named)) == (1.0, 0.0)


def test_a_reference_elsewhere_is_never_followed(tmp_path):
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        (tmp_path / "any.json").write_text("{}")
        for place in (f"{address}/ref.json", (tmp_path / "any.json").as_uri()):
            with pytest.raises(
                InputError, match="the schema of sample 0 cannot be used: it refers to what is not in it"
            ):
                judge("1", {"$ref": place})
        assert judge("1", {"$schema": f"{address}/draft", "type": "integer"}) == 1.0
        assert judge("1", {"$id": f"{address}/id", "type": "integer"}) == 1.0
        assert (
            judge(json.dumps({"$ref": f"{address}/instance", "$schema": f"{address}/draft"}), {"type": "object"}) == 1.0
        )
        server.shutdown()
    assert asked == []


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (None, "it is a NoneType, not an object"),
        ("", "it cannot be read"),
        ("[]", "it is a list, not an object"),
        ({"type": "strin"}, "is none: 'strin' is not valid"),
        ({"pattern": "("}, "is none: '\\(' is not a 'regex'"),
        ({"type": {1}}, "is no JSON"),
        ({"$ref": "#/$defs/x"}, "cannot be used: it refers to what is not in it"),
        ({"$ref": "#"}, "cannot be used: it refers to itself without an end"),
    ],
)
def test_a_schema_that_is_none_is_refused(schema, message):
    with pytest.raises(InputError, match=message):
        judge("1", schema)


def test_a_value_that_takes_long_to_judge_has_no_verdict(caplog):
    """Objects are compared in pairs where they must differ."""
    many = "[" + ",".join(f'{{"a":{n}}}' for n in range(8_000)) + "]"
    assert judge(many, {"uniqueItems": True}, timeout_s=0.5) is None
    assert "no verdict on 1 of 1 completions: it took more than 0.5 s" in caplog.text


def test_it_says_which_package_it_needs(monkeypatch):
    monkeypatch.setattr(json_schema.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"needs jsonschema: pip install 'grpo-kernels\[json\]'"):
        find_rewards(["json"])
