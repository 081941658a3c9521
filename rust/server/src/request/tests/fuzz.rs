//! Bodies that nobody would write: every one is taken or refused in order, and no reader panics.

use proptest::prelude::*;
use serde_json::{Map, Value};

use super::{ALL, LIMITS, attempt_body};
use crate::request::parity::{self, Dialect};

fn in_order(dialect: Dialect, body: &[u8]) {
    if let Err(error) = attempt_body(dialect, body, &LIMITS) {
        assert!(matches!(error.status.as_u16(), 400 | 404 | 501), "{error:?}");
        assert!(!error.message.is_empty() && error.message.len() < 2000, "{error:?}");
    }
}

fn value() -> impl Strategy<Value = Value> {
    let words =
        ["user", "assistant", "tool", "text", "function", "message", "input_text", "auto", "any", "tool_use"];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-3_i64..40).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,6}".prop_map(Value::from),
        prop::sample::select(words.to_vec()).prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        let keys = [
            "type",
            "role",
            "content",
            "text",
            "name",
            "function",
            "id",
            "call_id",
            "input",
            "output",
            "arguments",
            "format",
            "json_schema",
            "schema",
            "effort",
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((prop::sample::select(keys.to_vec()), inner), 0..4).prop_map(|pairs| {
                pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect::<Map<_, _>>().into()
            }),
        ]
    })
}

proptest! {
    #[test]
    fn any_fields_of_any_dialect_are_taken_or_refused(
        which in 0..ALL.len(),
        fields in prop::collection::vec((any::<prop::sample::Index>(), value()), 0..6),
        has_prompt in any::<bool>(),
    ) {
        let dialect = ALL[which];
        let names: Vec<&str> = parity::table(dialect).map(|(name, _)| name).collect();
        let mut body = Map::new();
        if has_prompt {
            let small: Value = serde_json::from_slice(&super::body(dialect, "stream", Value::Null)).unwrap();
            body.extend(small.as_object().unwrap().clone());
        }
        body.extend(fields.into_iter().map(|(name, value)| (name.get(&names).to_string(), value)));
        in_order(dialect, Value::from(body).to_string().as_bytes());
    }

    #[test]
    fn any_bytes_are_a_body_or_a_400(which in 0..ALL.len(), bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        in_order(ALL[which], &bytes);
    }

    #[test]
    fn a_body_that_was_damaged_is_a_body_or_a_400(which in 0..ALL.len(), at in any::<prop::sample::Index>(), byte: u8) {
        let mut body = super::body(ALL[which], "temperature", Value::from(0.5));
        let at = at.index(body.len());
        body[at] = byte;
        in_order(ALL[which], &body);
    }
}
