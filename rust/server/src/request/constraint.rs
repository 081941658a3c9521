//! `response_format` and `structured_outputs`: what the output must satisfy. Read here, compiled in [`crate::prepare`].

use frizzen_grammar::{GrammarError, GrammarKind, GrammarSpec, structural};
use serde_json::{Map, Value};

use crate::error::{ApiError, quoted};
use crate::request::fields::Fields;

const RESPONSE_FORMAT: &str = "response_format";
const STRUCTURED_OUTPUTS: &str = "structured_outputs";

/// A grammar that a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestedGrammar {
    /// What the output must satisfy.
    pub spec: GrammarSpec,
    /// The field that asks for it.
    pub field: &'static str,
}

/// The refusal of what `field` holds.
pub fn refused(field: &'static str, error: &GrammarError) -> ApiError {
    ApiError::invalid(field, format!("{field}: {error}"))
}

/// Reads both fields; at most one of them may ask for something.
pub fn requested(fields: &mut Fields) -> Result<Option<RequestedGrammar>, ApiError> {
    let format = match fields.object(RESPONSE_FORMAT)? {
        Some(format) => response_format(&format).map_err(|error| refused(RESPONSE_FORMAT, &error))?,
        None => None,
    };
    let structured = match fields.object(STRUCTURED_OUTPUTS)? {
        Some(object) => GrammarSpec::from_structured_outputs(&object)
            .map_err(|error| refused(STRUCTURED_OUTPUTS, &error))?,
        None => None,
    };
    match (format, structured) {
        (Some(_), Some(_)) => Err(ApiError::invalid(
            STRUCTURED_OUTPUTS,
            "structured_outputs and response_format both constrain the output; exactly one may",
        )),
        (Some(spec), None) => Ok(Some(RequestedGrammar { spec, field: RESPONSE_FORMAT })),
        (None, Some(spec)) => Ok(Some(RequestedGrammar { spec, field: STRUCTURED_OUTPUTS })),
        (None, None) => Ok(None),
    }
}

fn response_format(format: &Map<String, Value>) -> Result<Option<GrammarSpec>, GrammarError> {
    let kind = format.get("type").and_then(Value::as_str);
    if kind == Some("structural_tag") {
        let part = structural::read(&Value::Object(format.clone()))?;
        return Ok(Some(GrammarKind::Parts(part).into()));
    }
    if let Some(name) = format.keys().find(|name| *name != "type" && *name != "json_schema") {
        return Err(GrammarError(format!("{} is not supported", quoted(name, 32))));
    }
    match (kind, format.get("json_schema").filter(|value| !value.is_null())) {
        (Some("json_schema"), Some(Value::Object(wrapper))) => json_schema(wrapper).map(Some),
        (Some("json_schema"), _) => {
            Err(GrammarError("type 'json_schema' needs the object json_schema".to_owned()))
        }
        (Some("text" | "json_object"), Some(_)) => {
            Err(GrammarError("json_schema is given, but type is not 'json_schema'".to_owned()))
        }
        (Some("text"), None) => Ok(None),
        (Some("json_object"), None) => Ok(Some(GrammarSpec::json_object())),
        _ => Err(GrammarError(
            "type must be 'text', 'json_object', 'json_schema' or 'structural_tag'".to_owned(),
        )),
    }
}

/// The schema within OpenAI's wrapper of a name, a description and `strict`. It is enforced whatever `strict` says.
fn json_schema(wrapper: &Map<String, Value>) -> Result<GrammarSpec, GrammarError> {
    for (name, value) in wrapper.iter().filter(|(_, value)| !value.is_null()) {
        let fits = match name.as_str() {
            "name" | "description" => value.is_string(),
            "strict" => value.is_boolean(),
            "schema" => true,
            _ => return Err(GrammarError(format!("json_schema.{} is not supported", quoted(name, 32)))),
        };
        if !fits {
            return Err(GrammarError(format!("json_schema.{name} is of the wrong type")));
        }
    }
    match wrapper.get("schema").filter(|schema| !schema.is_null()) {
        Some(schema) => GrammarSpec::json("json_schema.schema", schema),
        None => Err(GrammarError("json_schema.schema is missing".to_owned())),
    }
}
