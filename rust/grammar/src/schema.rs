//! The check of a JSON schema before it is compiled: what cannot be enforced is named, with a pointer to where it is.
//!
//! What can be said in other keywords is [rewritten](crate::rewrite) first. The compiler below refuses most of the rest too, but neither says where, nor sees what is only wrong in its numbers, nor
//! that a schema has no finite instance.

use llguidance::derivre::{RegexAst, RegexBuilder};
use llguidance::regex_to_lark;
use serde_json::{Map, Value};

use crate::grammar::reason;
use crate::rewrite::rewrite;
use crate::spec::GrammarError;

/// Keywords that restrict instances and cannot be turned into a grammar, where they are left after rewriting.
const UNSUPPORTED: [&str; 18] = [
    "not",
    "if",
    "then",
    "else",
    "uniqueItems",
    "contains",
    "minContains",
    "maxContains",
    "propertyNames",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$dynamicRef",
    "$recursiveRef",
    // Options of the compiler below, which could switch its own checks off.
    "x-guidance",
    "disallow",
];
/// Keywords whose value is a schema.
const ONE: [&str; 8] = [
    "items",
    "additionalItems",
    "additionalProperties",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
    "then",
    "else",
];
/// Keywords whose value is a schema that instances may have to fail: nothing may be left out of it.
const TESTS: [&str; 3] = ["not", "if", "contains"];
/// Keywords whose value is a list of schemas.
const LIST: [&str; 5] = ["allOf", "anyOf", "oneOf", "prefixItems", "items"];
/// Keywords whose value is an object of schemas.
const MAP: [&str; 6] =
    ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"];
/// Keywords whose number is compared with that of an instance.
const BOUNDS: [&str; 5] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];
/// The largest integer up to which double precision holds every integer.
const EXACT: u64 = 1 << 53;
/// Steps of the search for a finite instance; a schema that takes more is left to the other limits.
const MAX_STEPS: usize = 20_000;

/// Checks a schema, and says what it can of it in keywords that the compiler knows. With `lenient`, keywords that cannot be
/// enforced are taken out too; returns which, with pointers.
///
/// # Errors
/// The first construct that cannot be enforced.
pub fn check(schema: &mut Value, lenient: bool) -> Result<Vec<String>, GrammarError> {
    let mut walk = Walk { lenient, dropped: Vec::new(), path: String::from("#") };
    walk.schema(schema)?;
    let mut search = Search { root: schema, open: Vec::new(), steps: 0 };
    if !search.is_finite(schema) {
        let message = "the schema has no finite instance: it requires a value that contains itself without end, or that nothing satisfies";
        return Err(GrammarError::new(message));
    }
    Ok(walk.dropped)
}

struct Walk {
    lenient: bool,
    dropped: Vec<String>,
    path: String,
}

impl Walk {
    fn refuse<T>(&self, why: &str) -> Result<T, GrammarError> {
        Err(GrammarError::new(format!("the schema at {}: {why}", self.path)))
    }

    fn schema(&mut self, schema: &mut Value) -> Result<(), GrammarError> {
        let map = match schema {
            Value::Object(map) => map,
            Value::Bool(_) => return Ok(()),
            _ => return self.refuse("a schema must be an object or a boolean"),
        };
        self.tests(map)?;
        for name in ONE {
            if let Some(value) = map.get_mut(name).filter(|value| !value.is_array()) {
                self.at(name, |walk| walk.schema(value))?;
            }
        }
        for name in LIST {
            if let Some(Value::Array(items)) = map.get_mut(name) {
                for (index, item) in items.iter_mut().enumerate() {
                    self.at(&format!("{name}/{index}"), |walk| walk.schema(item))?;
                }
            }
        }
        for name in MAP {
            if let Some(Value::Object(members)) = map.get_mut(name) {
                // Draft 7's dependencies are lists of names too.
                for (member, value) in members.iter_mut().filter(|(_, value)| !value.is_array()) {
                    let member = member.replace('~', "~0").replace('/', "~1");
                    self.at(&format!("{name}/{member}"), |walk| walk.schema(value))?;
                }
            }
        }
        rewrite(map);
        self.keywords(map)
    }

    fn tests(&mut self, map: &mut Map<String, Value>) -> Result<(), GrammarError> {
        for name in TESTS {
            let Some(value) = map.get_mut(name) else { continue };
            let lenient = std::mem::replace(&mut self.lenient, false);
            let result = self.at(name, |walk| walk.schema(value));
            self.lenient = lenient;
            if result.is_err() && lenient {
                map.shift_remove(name);
                self.dropped.push(format!("{}/{name}", self.path));
            } else {
                result?;
            }
        }
        Ok(())
    }

    fn at<T>(&mut self, step: &str, inner: impl FnOnce(&mut Self) -> T) -> T {
        let length = self.path.len();
        self.path.push('/');
        self.path.push_str(step);
        let result = inner(self);
        self.path.truncate(length);
        result
    }

    fn keywords(&mut self, map: &mut Map<String, Value>) -> Result<(), GrammarError> {
        for name in UNSUPPORTED {
            if map.contains_key(name) {
                if !self.lenient {
                    return self.refuse(&format!("the keyword {name:?} cannot be enforced"));
                }
                map.shift_remove(name);
                self.dropped.push(format!("{}/{name}", self.path));
            }
        }
        if let Some(Value::String(target)) = map.get("$ref")
            && !target.starts_with('#')
        {
            return self.refuse(&format!("the reference {target:?} leads out of the schema"));
        }
        for name in BOUNDS {
            if map.get(name).is_some_and(is_inexact) {
                return self.refuse(&format!("{name} is beyond the integers that are exact, up to 2^53"));
            }
        }
        if let Some(Value::String(pattern)) = map.get("pattern")
            && let Err(error) = parse_pattern(pattern)
        {
            if !self.lenient {
                return self.refuse(&format!("its pattern cannot be enforced: {}", reason(&error)));
            }
            map.shift_remove("pattern");
            self.dropped.push(format!("{}/pattern", self.path));
        }
        for name in ["const", "enum"] {
            if map.get(name).is_some_and(is_inexact) {
                return self.refuse(&format!(
                    "{name} holds a number beyond the integers that are exact, up to 2^53"
                ));
            }
        }
        Ok(())
    }
}

/// Reads a pattern as the compiler below does.
fn parse_pattern(pattern: &str) -> Result<(), impl std::fmt::Display + use<>> {
    let pattern = RegexAst::SearchRegex(regex_to_lark(pattern, "dw"));
    RegexBuilder::new().mk(&pattern).map(drop)
}

/// True if a number in the value would be changed by double precision.
fn is_inexact(value: &Value) -> bool {
    match value {
        Value::Number(number) => {
            let size = number.as_u64().or_else(|| number.as_i64().map(i64::unsigned_abs));
            size.is_some_and(|size| size > EXACT)
        }
        Value::Array(items) => items.iter().any(is_inexact),
        Value::Object(members) => members.values().any(is_inexact),
        _ => false,
    }
}

/// Looks for a finite instance: a reference that is met again while it is being followed cannot help to end.
struct Search<'a> {
    root: &'a Value,
    open: Vec<&'a str>,
    steps: usize,
}

impl<'a> Search<'a> {
    fn is_finite(&mut self, schema: &'a Value) -> bool {
        self.steps += 1;
        if self.steps > MAX_STEPS {
            return true;
        }
        let map = match schema {
            Value::Bool(any) => return *any,
            Value::Object(map) => map,
            _ => return true,
        };
        if let Some(Value::String(target)) = map.get("$ref")
            && !self.reference_is_finite(target)
        {
            return false;
        }
        let list = |name: &str| map.get(name).and_then(Value::as_array);
        if let Some(all) = list("allOf")
            && !all.iter().all(|part| self.is_finite(part))
        {
            return false;
        }
        for name in ["anyOf", "oneOf"] {
            if let Some(any) = list(name)
                && !any.iter().any(|part| self.is_finite(part))
            {
                return false;
            }
        }
        if map.contains_key("const") || map.contains_key("enum") {
            return true;
        }
        match map.get("type").and_then(Value::as_str) {
            Some("object") => self.members_are_finite(map),
            Some("array") => self.items_are_finite(map),
            // Without a type, or with a choice of them, some scalar will do.
            _ => true,
        }
    }

    fn members_are_finite(&mut self, map: &'a Map<String, Value>) -> bool {
        let required = map.get("required").and_then(Value::as_array).into_iter().flatten();
        let mut required = required.filter_map(Value::as_str);
        required.all(|name| match map.get("properties").and_then(|properties| properties.get(name)) {
            Some(property) => self.is_finite(property),
            None => true,
        })
    }

    fn items_are_finite(&mut self, map: &'a Map<String, Value>) -> bool {
        let least = map.get("minItems").and_then(Value::as_u64).unwrap_or(0) as usize;
        let prefix = map.get("prefixItems").and_then(Value::as_array);
        let prefix_len = prefix.map_or(0, Vec::len);
        prefix.into_iter().flatten().take(least).all(|item| self.is_finite(item))
            && (least <= prefix_len || map.get("items").is_none_or(|items| self.is_finite(items)))
    }

    fn reference_is_finite(&mut self, target: &'a str) -> bool {
        if self.open.contains(&target) {
            return false;
        }
        // Anchors and identifiers are the compiler's to resolve.
        let Some(schema) = target.strip_prefix('#').and_then(|pointer| self.root.pointer(pointer)) else {
            return true;
        };
        self.open.push(target);
        let finite = self.is_finite(schema);
        self.open.pop();
        finite
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refused(mut schema: Value) -> String {
        check(&mut schema, false).expect_err("this must be refused").0
    }

    #[test]
    fn unsupported_keywords_are_named_with_their_place_llguidance_238() {
        let deep = json!({"properties": {"a/b": {"anyOf": [{}, {"items": {"not": {"pattern": "a"}}}]}}});
        assert_eq!(
            refused(deep),
            "the schema at #/properties/a~1b/anyOf/1/items: the keyword \"not\" cannot be enforced"
        );
        let pattern = json!({"pattern": "a"});
        for (keyword, schema) in [
            ("not", json!({"not": {"type": "integer"}})),
            ("if", json!({"if": pattern, "then": false})),
            ("uniqueItems", json!({"uniqueItems": true})),
            ("contains", json!({"contains": pattern})),
            ("propertyNames", json!({"propertyNames": pattern, "properties": {"b": {}}})),
            ("dependentRequired", json!({"dependentRequired": {"a": [1]}})),
            ("unevaluatedItems", json!({"unevaluatedItems": false, "anyOf": [{}]})),
            ("unevaluatedProperties", json!({"unevaluatedProperties": false, "$ref": "#/$defs/a"})),
            ("$dynamicRef", json!({"$dynamicRef": "#a"})),
            ("$recursiveRef", json!({"$recursiveRef": "#"})),
            ("x-guidance", json!({"x-guidance": {}})),
            ("disallow", json!({"disallow": "string"})),
        ] {
            let message = refused(schema);
            assert!(message.contains(&format!("the keyword {keyword:?}")), "{message}");
        }
        assert!(refused(json!({"$ref": "https://example.com/s.json"})).contains("leads out of the schema"));
    }

    #[test]
    fn data_is_not_taken_for_schemas() {
        let mut schema = json!({
            "properties": {"not": {"type": "string"}, "if": true},
            "enum": [{"not": 1}], "const": {"if": 2}, "default": {"contains": 1}, "examples": [{"not": {}}],
        });
        assert_eq!(check(&mut schema, false), Ok(vec![]));
    }

    #[test]
    fn a_keyword_that_asks_for_nothing_is_no_reason_to_refuse() {
        let mut schema = json!({"type": "array", "uniqueItems": false});
        assert_eq!(check(&mut schema, false), Ok(vec![]));
        assert_eq!(schema, json!({"type": "array"}));
    }

    #[test]
    fn a_lenient_check_says_what_it_dropped() {
        let mut schema = json!({"type": "array", "uniqueItems": true, "items": {"not": {"pattern": "a"}}});
        assert_eq!(check(&mut schema, true), Ok(vec!["#/items/not".into(), "#/uniqueItems".into()]));
        assert_eq!(schema, json!({"type": "array", "items": {}}));
    }

    #[test]
    fn numbers_that_double_precision_would_change_are_refused() {
        assert!(refused(json!({"const": 9_007_199_254_740_993_u64})).contains("2^53"));
        assert!(refused(json!({"enum": [{"a": [-9_007_199_254_740_993_i64]}]})).contains("2^53"));
        assert!(
            refused(json!({"properties": {"n": {"maximum": u64::MAX}}})).contains("#/properties/n: maximum")
        );
        assert_eq!(check(&mut json!({"const": 9_007_199_254_740_992_u64}), false), Ok(vec![]));
    }

    #[test]
    fn a_schema_without_a_finite_instance_is_refused() {
        let list = json!({"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]});
        assert!(refused(list).contains("no finite instance"));
        let tree = json!({
            "$defs": {"node": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/node"}}},
            "$ref": "#/$defs/node",
        });
        assert!(refused(tree).contains("no finite instance"));
        assert!(refused(json!(false)).contains("no finite instance"));
        for finite in [
            json!({"type": "object", "properties": {"next": {"$ref": "#"}}}),
            json!({"type": "object", "properties": {"next": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}}, "required": ["next"]}),
            json!({"$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}}, "$ref": "#/$defs/n"}),
        ] {
            assert_eq!(check(&mut finite.clone(), false), Ok(vec![]), "{finite}");
        }
    }
}
