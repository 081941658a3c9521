//! Keywords of JSON Schema that the compiler below does not know, said in those that it knows.
//!
//! Every rule is exact: the same instances satisfy the schema before and after. What no rule fits stays where it is, and
//! is refused by the [check](crate::schema). Subschemas are rewritten before the schemas that hold them.

use serde_json::{Map, Value, json};

use crate::complement::{TYPES, complement, is_always, is_never, string_list, types_of};

/// Counts, which may be written with a fraction of zero.
const COUNTS: [&str; 8] = [
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "minContains",
    "maxContains",
];
/// Keywords by which another schema may say more about the members of an object.
const IN_PLACE: [&str; 11] = [
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "then",
    "else",
    "dependentSchemas",
    "dependencies",
    "$ref",
    "$dynamicRef",
];
/// Keywords of alternatives that the compiler below never finds to exclude one another.
const OVERLAPPING: [&str; 14] = [
    "type",
    "title",
    "description",
    "required",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
];
/// Most of them.
const MAX_OVERLAPPING: usize = 4;
/// Most conditions on the presence of members: each doubles the alternatives.
const MAX_DEPENDENCIES: usize = 6;
/// Most arrays of distinct values that are listed.
const MAX_LISTED: usize = 400;

/// The form of draft 4, which `OpenAPI` 3.0 has too: a bound, and whether it is excluded.
fn exclusive(map: &mut Map<String, Value>) {
    for (name, bound) in [("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")] {
        let Some(Value::Bool(excluded)) = map.get(name) else { continue };
        // Without a bound it says nothing.
        let limit = if *excluded { map.shift_remove(bound) } else { None };
        map.shift_remove(name);
        map.extend(limit.map(|limit| (name.to_owned(), limit)));
    }
}

/// Takes out of one schema what can be said otherwise.
pub(crate) fn rewrite(map: &mut Map<String, Value>) {
    exclusive(map);
    counts(map);
    if map.get("uniqueItems") == Some(&Value::Bool(false)) {
        map.shift_remove("uniqueItems");
    }
    // Before anything is added in place.
    unevaluated(map, "unevaluatedProperties", "additionalProperties");
    unevaluated(map, "unevaluatedItems", "items");
    property_names(map);
    dependencies(map);
    contains(map);
    unique_items(map);
    one_of(map);
    overlapping(map);
    condition(map);
    negation(map);
}

fn counts(map: &mut Map<String, Value>) {
    for name in COUNTS {
        let Some(count) = map.get_mut(name) else { continue };
        if let Some(float) = count.as_f64().filter(|float| count.is_f64() && float.fract() == 0.0)
            && (0.0..1e15).contains(&float)
        {
            *count = (float as u64).into();
        }
    }
}

/// The schema asks for this too.
fn also(map: &mut Map<String, Value>, schema: Value) {
    match map.get_mut("allOf") {
        Some(Value::Array(all)) => all.push(schema),
        _ => {
            map.insert("allOf".to_owned(), Value::Array(vec![schema]));
        }
    }
}

/// Where nothing in place says more, what is not evaluated is what `additional` means.
fn unevaluated(map: &mut Map<String, Value>, name: &str, additional: &str) {
    let Some(schema) = map.get(name) else { return };
    let in_place = IN_PLACE.iter().any(|keyword| map.contains_key(*keyword))
        || (additional == "items" && map.contains_key("contains"));
    if is_always(schema) || map.contains_key(additional) {
        map.shift_remove(name);
    } else if !in_place && let Some(schema) = map.shift_remove(name) {
        map.insert(additional.to_owned(), schema);
    }
}

fn property_names(map: &mut Map<String, Value>) {
    let Some(names) = map.get("propertyNames").cloned() else { return };
    let additional = map.get("additionalProperties").cloned().unwrap_or(Value::Bool(true));
    let listed = map.contains_key("properties") || map.contains_key("patternProperties");
    if is_never(&names) {
        also(map, json!({"maxProperties": 0}));
    } else if let Some(allowed) = allowed_names(&names).filter(|_| !map.contains_key("patternProperties")) {
        let mut properties = match map.shift_remove("properties") {
            Some(Value::Object(properties)) => properties,
            _ => Map::new(),
        };
        for (name, schema) in &mut properties {
            if !allowed.contains(name) {
                *schema = Value::Bool(false);
            }
        }
        for name in allowed {
            properties.entry(name).or_insert_with(|| additional.clone());
        }
        map.insert("properties".to_owned(), Value::Object(properties));
        map.insert("additionalProperties".to_owned(), Value::Bool(false));
    } else if let Some(pattern) = name_pattern(&names).filter(|_| !listed) {
        map.insert("patternProperties".to_owned(), json!({pattern: additional}));
        map.insert("additionalProperties".to_owned(), Value::Bool(false));
    } else if !is_always(&names) {
        return;
    }
    map.shift_remove("propertyNames");
}

/// The names of a schema that lists them.
fn allowed_names(schema: &Value) -> Option<Vec<String>> {
    let map = schema.as_object().filter(|map| map.len() == 1)?;
    match (map.get("const"), map.get("enum")) {
        (Some(Value::String(name)), None) => Some(vec![name.clone()]),
        (None, Some(names)) => string_list(names),
        _ => None,
    }
}

/// The pattern of names that have one, or a length.
fn name_pattern(schema: &Value) -> Option<String> {
    let map = schema.as_object().filter(|map| map.keys().all(|key| key != "type" || map[key] == "string"))?;
    let keys: Vec<&str> = map.keys().map(String::as_str).filter(|key| *key != "type").collect();
    let count = |name: &str| map.get(name).map(|count| count.as_u64().map(|count| count.to_string()));
    match keys[..] {
        ["pattern"] => map["pattern"].as_str().map(str::to_owned),
        _ if !keys.is_empty() && keys.iter().all(|key| ["minLength", "maxLength"].contains(key)) => {
            let least = count("minLength").unwrap_or(Some("0".to_owned()))?;
            let most = count("maxLength").unwrap_or(Some(String::new()))?;
            Some(format!("^[\\s\\S]{{{least},{most}}}$"))
        }
        _ => None,
    }
}

/// Either the member is not there, or what depends on it holds.
fn dependencies(map: &mut Map<String, Value>) {
    for keyword in ["dependentRequired", "dependentSchemas", "dependencies"] {
        let Some(Value::Object(members)) = map.get(keyword) else { continue };
        let mut added = Vec::new();
        let mut known = true;
        for (name, dependent) in members {
            let present = match (dependent, string_list(dependent)) {
                (_, Some(names)) if names.is_empty() => continue,
                (_, Some(names)) => {
                    let all: Vec<&String> = std::iter::once(name).chain(&names).collect();
                    json!({"required": all})
                }
                (Value::Array(_), None) => {
                    known = false;
                    continue;
                }
                (schema, _) if is_always(schema) => continue,
                (schema, _) => json!({"required": [name], "allOf": [schema]}),
            };
            added.push(json!({"anyOf": [{"properties": {name: false}}, present]}));
        }
        if known && added.len() <= MAX_DEPENDENCIES {
            map.shift_remove(keyword);
            for schema in added {
                also(map, schema);
            }
        }
    }
}

fn contains(map: &mut Map<String, Value>) {
    let count = |name: &str| map.get(name).map(Value::as_u64);
    let (least, most) = (count("minContains").unwrap_or(Some(1)), count("maxContains"));
    let done = match (map.get("contains"), least, most) {
        (None, ..) | (Some(_), Some(0), None) => true,
        (Some(schema), Some(least), most) if is_always(schema) && most != Some(None) => {
            let mut range = json!({"minItems": least});
            if let Some(most) = most.flatten() {
                range["maxItems"] = most.into();
            }
            also(map, range);
            true
        }
        (Some(schema), Some(least), _) if is_never(schema) => {
            if least > 0 {
                let others: Vec<&str> = TYPES.into_iter().filter(|name| *name != "array").collect();
                also(map, json!({"type": others}));
            }
            true
        }
        _ => false,
    };
    if done {
        for name in ["contains", "minContains", "maxContains"] {
            map.shift_remove(name);
        }
    }
}

/// Arrays of few values can be listed.
fn unique_items(map: &mut Map<String, Value>) {
    if map.get("uniqueItems") != Some(&Value::Bool(true)) {
        return;
    }
    let most = map.get("maxItems").and_then(Value::as_u64);
    if most.is_some_and(|most| most <= 1) {
        map.shift_remove("uniqueItems");
        return;
    }
    let is_array = map.get("type").is_some_and(|kind| kind == "array");
    let values = map.get("items").filter(|_| is_array && !map.contains_key("prefixItems"));
    let Some(values) = values.and_then(few_values) else { return };
    let most = most.map_or(values.len(), |most| values.len().min(most as usize));
    let mut arrays: Vec<Vec<Value>> = vec![Vec::new()];
    let mut longest = 0..1;
    for _ in 0..most {
        for at in longest.clone() {
            for value in &values {
                if !arrays[at].contains(value) {
                    arrays.push([&arrays[at][..], std::slice::from_ref(value)].concat());
                }
            }
            if arrays.len() > MAX_LISTED {
                return;
            }
        }
        longest = longest.end..arrays.len();
    }
    let least = map.get("minItems").map_or(Some(0), Value::as_u64);
    let Some(least) = least else { return };
    arrays.retain(|array| array.len() as u64 >= least);
    map.shift_remove("uniqueItems");
    also(map, if arrays.is_empty() { Value::Bool(false) } else { json!({"enum": arrays}) });
}

/// The values of a schema that lists strings, or of a boolean.
fn few_values(schema: &Value) -> Option<Vec<Value>> {
    let map = schema.as_object()?;
    let only = |names: &[&str]| map.keys().all(|key| names.contains(&key.as_str()));
    if let Some(values) = map.get("enum").filter(|_| only(&["enum", "type", "title", "description"])) {
        let values: Vec<Value> = string_list(values)?.into_iter().map(Value::from).collect();
        let distinct = (1..values.len()).all(|at| !values[..at].contains(&values[at]));
        return (distinct && map.get("type").is_none_or(|kind| kind == "string")).then_some(values);
    }
    (map.get("type")? == "boolean" && only(&["type", "title", "description"]))
        .then(|| vec![Value::Bool(false), Value::Bool(true)])
}

/// Alternatives that nothing satisfies are none, and of two that everything satisfies both apply.
fn one_of(map: &mut Map<String, Value>) {
    let Some(Value::Array(all)) = map.get_mut("oneOf") else { return };
    if all.iter().all(is_never) || !all.iter().any(|one| is_never(one) || is_always(one)) {
        return;
    }
    all.retain(|one| !is_never(one));
    let always = all.iter().filter(|one| is_always(one)).count();
    if always > 1 {
        map.shift_remove("oneOf");
        also(map, Value::Bool(false));
    } else if all.len() == 1 {
        let one = all.swap_remove(0);
        map.shift_remove("oneOf");
        also(map, one);
    } else if always == 1 {
        // Everything satisfies one, so nothing else may be satisfied.
        let others: Option<Vec<Value>> =
            all.iter().filter(|one| !is_always(one)).map(|one| complement(one, &TYPES)).collect();
        if let Some(others) = others {
            map.shift_remove("oneOf");
            for schema in others {
                also(map, schema);
            }
        }
    }
}

/// Alternatives that can hold together, so that the compiler below refuses them: each of them, and none of the others.
///
/// Those of one type that speak of sizes and of members that must be there only are never told apart there. All others are
/// left to it, since alternatives that exclude one another by themselves are shorter as they are.
fn overlapping(map: &mut Map<String, Value>) {
    let types = types_of(map);
    let Some(Value::Array(all)) = map.get("oneOf") else { return };
    let speaks_of_sizes = |one: &Value| {
        one.as_object().is_some_and(|one| one.keys().all(|name| OVERLAPPING.contains(&name.as_str())))
    };
    let same_type = all.iter().all(|one| one.get("type") == all[0].get("type"));
    if !(2..=MAX_OVERLAPPING).contains(&all.len()) || !same_type || !all.iter().all(speaks_of_sizes) {
        return;
    }
    let others: Option<Vec<Value>> = all.iter().map(|one| complement(one, &types)).collect();
    let Some(others) = others else { return };
    let one_alone = |index: usize| {
        let parts = (0..all.len()).map(|at| if at == index { &all[at] } else { &others[at] });
        json!({"allOf": parts.collect::<Vec<_>>()})
    };
    let ways: Vec<Value> = (0..all.len()).map(one_alone).collect();
    map.shift_remove("oneOf");
    also(map, json!({"anyOf": ways}));
}

fn condition(map: &mut Map<String, Value>) {
    let Some(test) = map.get("if") else {
        map.shift_remove("then");
        map.shift_remove("else");
        return;
    };
    let branch = |name: &str| map.get(name).cloned().unwrap_or(Value::Bool(true));
    let (then, other) = (branch("then"), branch("else"));
    let known = if is_always(test) {
        Some(then)
    } else if is_never(test) {
        Some(other)
    } else if is_always(&then) && is_always(&other) {
        Some(Value::Bool(true))
    } else {
        let types = types_of(map);
        complement(test, &types)
            .map(|not| json!({"anyOf": [{"allOf": [test, then]}, {"allOf": [not, other]}]}))
    };
    if let Some(known) = known {
        for name in ["if", "then", "else"] {
            map.shift_remove(name);
        }
        if !is_always(&known) {
            also(map, known);
        }
    }
}

fn negation(map: &mut Map<String, Value>) {
    let types = types_of(map);
    let Some(other) = map.get("not").and_then(|schema| complement(schema, &types)) else { return };
    map.shift_remove("not");
    if !is_always(&other) {
        also(map, other);
    }
}
