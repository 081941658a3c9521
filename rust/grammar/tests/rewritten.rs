//! Keywords that are said in others: what a schema with them accepts is what the keyword means, instance by instance.

mod common;

use common::compiler;
use frizzen_core::{TokenId, TokenMatcher};
use frizzen_grammar::GrammarSpec;
use serde_json::{Value, json};

fn accepts(schema: &Value, instance: &Value) -> bool {
    let spec = GrammarSpec::json("schema", schema).expect("a schema");
    let grammar = compiler().compile(&spec).unwrap_or_else(|error| panic!("{schema}: {error}"));
    assert!(grammar.dropped().is_empty());
    let mut matcher = grammar.start();
    let text = instance.to_string();
    text.bytes().all(|byte| matcher.accept(TokenId::from(byte)).is_ok()) && matcher.can_end()
}

fn holds(schema: &Value, valid: &Value, invalid: &Value) {
    for (instances, expected) in [(valid, true), (invalid, false)] {
        for instance in instances.as_array().expect("a list of instances") {
            assert_eq!(accepts(schema, instance), expected, "{schema} and {instance}");
        }
    }
}

#[test]
fn a_string_may_be_any_but_those_it_must_not_be() {
    let schema = json!({"type": "string", "not": {"enum": ["ab", "a", "", "x.y\n", "é"]}});
    let valid = json!(["b", "abc", "aa", "abab", "x", "x.y", "x.y\n\n", "xzy\n", "éé", "e", "\"", "\n"]);
    holds(&schema, &valid, &json!(["ab", "a", "", "x.y\n", "é", 1, null]));
    let any = json!({"not": {"const": "no"}});
    holds(&any, &json!(["yes", "n", "noo", 1, null, ["no"], {"no": "no"}]), &json!(["no"]));
}

#[test]
fn a_number_may_be_any_but_those_it_must_not_be() {
    let schema = json!({"type": "number", "not": {"enum": [1, 2.5, -3]}});
    holds(&schema, &json!([0, 2, 3, 1.5, 2.4, 2.51, -2.9, -4, 1e1]), &json!([1, 1.0, 2.5, -3, "1"]));
    let integer = json!({"type": "integer", "not": {"const": 7}});
    holds(&integer, &json!([6, 8, 77, -7]), &json!([7, 6.5]));
    let range = json!({"not": {"minimum": 3}});
    holds(&range, &json!([2, 2.9, -1]), &json!([3, 4, "a", null, []]));
}

#[test]
fn what_is_not_of_a_type_is_of_another() {
    let schema = json!({"not": {"type": ["object", "string", "number"]}});
    holds(&schema, &json!([null, true, [1]]), &json!([{}, "a", 1, 1.5]));
    let within = json!({"type": ["integer", "null"], "not": {"type": "integer"}});
    holds(&within, &json!([null]), &json!([1, "a"]));
    let boolean = json!({"type": ["boolean", "null"], "not": {"enum": [true, null]}});
    holds(&boolean, &json!([false]), &json!([true, null]));
}

#[test]
fn members_that_exclude_one_another_do() {
    let schema = json!({
        "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "additionalProperties": false, "not": {"required": ["a", "b"]},
    });
    holds(&schema, &json!([{}, {"a": 1}, {"b": 2}]), &json!([{"a": 1, "b": 2}, {"a": "x"}, {"c": 1}]));
    let deep = json!({"type": "object", "not": {"properties": {"a": {"const": 1}}, "required": ["a"]}});
    holds(
        &deep,
        &json!([{}, {"b": 1}, {"a": 2}, {"a": "1"}, {"a": [1]}]),
        &json!([{"a": 1}, {"a": 1, "b": 1}]),
    );
}

#[test]
fn a_condition_on_a_member_chooses_what_else_is_asked_for() {
    let schema = json!({
        "type": "object",
        "properties": {"kind": {"enum": ["box", "ball"]}, "side": {"type": "integer"}, "radius": {"type": "number"}},
        "required": ["kind"], "additionalProperties": false,
        "if": {"properties": {"kind": {"const": "box"}}, "required": ["kind"]},
        "then": {"required": ["side"]},
        "else": {"required": ["radius"], "properties": {"side": false}},
    });
    let valid = json!([{"kind": "box", "side": 1}, {"kind": "ball", "radius": 0.5}, {"kind": "box", "side": 1, "radius": 2}]);
    let invalid = json!([{"kind": "box"}, {"kind": "ball"}, {"kind": "box", "radius": 1}, {"kind": "ball", "side": 1, "radius": 1},
                         {"kind": "cone", "side": 1}, {}]);
    holds(&schema, &valid, &invalid);
}

#[test]
fn conditions_nest_and_a_chain_of_them_is_followed() {
    let schema = json!({
        "type": "integer",
        "if": {"maximum": 9}, "then": {"minimum": 0},
        "else": {"if": {"maximum": 99}, "then": {"multipleOf": 10}, "else": {"multipleOf": 100}},
    });
    holds(&schema, &json!([0, 5, 9, 10, 90, 100, 700]), &json!([-1, 11, 99, 101, 150]));
    let twice = json!({"type": "string", "not": {"not": {"maxLength": 2}}});
    holds(&twice, &json!(["", "ab"]), &json!(["abc", 1]));
}

#[test]
fn draft_seven_dependencies_are_both_kinds() {
    let schema =
        json!({"type": "object", "dependencies": {"a": ["b"], "c": {"properties": {"b": {"type": "null"}}}}});
    holds(
        &schema,
        &json!([{}, {"b": 1}, {"a": 1, "b": 1}, {"c": 1}, {"b": null, "c": 1}]),
        &json!([{"a": 1}, {"b": 1, "c": 1}, {"a": 1, "c": 1}]),
    );
}

#[test]
fn distinct_choices_are_distinct() {
    let schema =
        json!({"type": "array", "items": {"enum": ["r", "g", "b"]}, "uniqueItems": true, "minItems": 1});
    holds(
        &schema,
        &json!([["r"], ["b", "r"], ["g", "b", "r"]]),
        &json!([[], ["r", "r"], ["r", "g", "r"], ["r", "g", "b", "r"], ["x"], "r"]),
    );
    let some = json!({"type": "array", "items": {"type": "boolean"}, "uniqueItems": true, "maxItems": 2});
    holds(&some, &json!([[], [true], [false, true]]), &json!([[true, true], [true, false, true]]));
}

#[test]
fn names_of_members_may_be_listed_or_have_a_form() {
    let listed = json!({"type": "object", "properties": {"a": {"type": "integer"}, "z": {}},
                        "additionalProperties": {"type": "null"}, "propertyNames": {"enum": ["a", "b"]}});
    holds(
        &listed,
        &json!([{}, {"a": 1}, {"b": null}, {"a": 1, "b": null}]),
        &json!([{"z": 1}, {"b": 1}, {"a": null}, {"c": null}]),
    );
    let formed = json!({"type": "object", "propertyNames": {"pattern": "^x_"}, "additionalProperties": {"type": "integer"}});
    holds(&formed, &json!([{}, {"x_a": 1}]), &json!([{"a": 1}, {"x_a": "1"}]));
    let short = json!({"type": "object", "propertyNames": {"minLength": 1, "maxLength": 2}});
    holds(&short, &json!([{}, {"a": 1}, {"é\n": 1}]), &json!([{"": 1}, {"abc": 1}]));
}

#[test]
fn what_is_not_evaluated_is_what_is_additional_where_nothing_else_speaks_of_it() {
    let schema =
        json!({"type": "object", "properties": {"a": {}}, "unevaluatedProperties": {"type": "integer"}});
    holds(&schema, &json!([{"a": "x"}, {"b": 1}]), &json!([{"b": "x"}]));
    let tuple = json!({"type": "array", "prefixItems": [{"type": "string"}], "unevaluatedItems": false});
    holds(&tuple, &json!([[], ["a"]]), &json!([["a", 1], [1]]));
}

#[test]
fn exactly_one_of_alternatives_holds_that_could_hold_together() {
    let schema = json!({
        "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}, "c": {"type": "integer"}},
        "additionalProperties": false, "oneOf": [{"required": ["a"]}, {"required": ["b"]}, {"required": ["c"]}],
    });
    holds(
        &schema,
        &json!([{"a": 1}, {"b": 1}, {"c": 1}]),
        &json!([{}, {"a": 1, "b": 1}, {"b": 1, "c": 1}, {"a": 1, "b": 1, "c": 1}, {"a": null}]),
    );
    let numbers = json!({"type": "integer", "oneOf": [{"minimum": 0}, {"maximum": 9}]});
    holds(&numbers, &json!([-1, -20, 10, 999]), &json!([0, 5, 9]));
    let typed = json!({"oneOf": [{"type": "string", "minLength": 2}, {"type": "string", "maxLength": 3}]});
    holds(&typed, &json!(["", "a", "abcd"]), &json!(["ab", "abc", 1]));
}
