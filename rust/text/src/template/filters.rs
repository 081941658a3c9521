//! Filters, tests and functions in which Jinja2 on Python and minijinja differ.
#![expect(clippy::needless_pass_by_value, reason = "minijinja hands arguments over by value")]

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Value};

use super::{methods, python};

type Result<T = Value> = std::result::Result<T, Error>;

pub(super) fn install(env: &mut Environment<'static>) {
    env.add_filter("tojson", python::tojson);
    env.add_filter("string", |value: &Value| python::to_str(value));
    env.add_filter("join", join);
    env.add_filter("length", length);
    env.add_filter("count", length);
    env.add_filter("int", int);
    env.add_filter("float", float);
    env.add_filter("trim", trim);
    env.add_filter("round", round);
    env.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String)
    });
    env.add_test("iterable", |value: &Value| {
        matches!(
            value.kind(),
            ValueKind::Seq | ValueKind::Iterable | ValueKind::Map | ValueKind::String | ValueKind::Undefined
        )
    });
    env.add_function("raise_exception", |message: &Value| -> Result {
        Err(Error::new(ErrorKind::InvalidOperation, python::to_str(message)?))
    });
}

/// `separator.join(str(item) for item in value)`.
fn join(value: &Value, separator: Option<Value>, attribute: Option<Value>, kwargs: Kwargs) -> Result<String> {
    let separator = separator.or(kwargs.get("d")?);
    let attribute = attribute.or(kwargs.get("attribute")?);
    kwargs.assert_all_used()?;
    let separator = separator.map_or(Ok(String::new()), |separator| python::to_str(&separator))?;
    let mut out = String::new();
    for (i, item) in iterate(value)?.enumerate() {
        if i > 0 {
            out.push_str(&separator);
        }
        let item = match &attribute {
            Some(path) => look_up(item, path)?,
            None => item,
        };
        out.push_str(&python::to_str(&item)?);
    }
    Ok(out)
}

/// The value at a dotted path, numbers being indices.
fn look_up(value: Value, path: &Value) -> Result {
    let Some(path) = path.as_str() else { return value.get_item(path) };
    path.split('.').try_fold(value, |value, part| match part.parse::<i64>() {
        Ok(index) => value.get_item(&Value::from(index)),
        Err(_) => value.get_attr(part),
    })
}

fn iterate(value: &Value) -> Result<minijinja::value::ValueIter> {
    if value.is_undefined() { Value::from(Vec::<Value>::new()).try_iter() } else { value.try_iter() }
}

/// `len(value)`, with 0 for undefined.
fn length(value: &Value) -> Result<usize> {
    if value.is_undefined() {
        return Ok(0);
    }
    value.len().ok_or_else(|| {
        Error::new(ErrorKind::InvalidOperation, format!("a value of type {} has no length", value.kind()))
    })
}

/// `int(value)`, or `default` (0) if that fails.
fn int(value: &Value, default: Option<Value>, base: Option<u32>, kwargs: Kwargs) -> Result {
    let default = default.or(kwargs.get("default")?).unwrap_or_else(|| Value::from(0));
    let base = base.or(kwargs.get("base")?).unwrap_or(10);
    kwargs.assert_all_used()?;
    if !(2..=36).contains(&base) {
        return Ok(default);
    }
    if let Some(text) = value.as_str() {
        let text = text.trim_matches(methods::is_space);
        let whole = i64::from_str_radix(text, base).ok();
        let whole = whole.or_else(|| text.parse::<f64>().ok().filter(|x| x.is_finite()).map(|x| x as i64));
        return Ok(whole.map_or(default, Value::from));
    }
    Ok(match value.kind() {
        ValueKind::Bool => Value::from(i64::from(value.is_true())),
        ValueKind::Number if value.is_integer() => value.clone(),
        ValueKind::Number => match f64::try_from(value.clone()) {
            Ok(x) if x.is_finite() => Value::from(x as i64),
            _ => default,
        },
        _ => default,
    })
}

/// `float(value)`, or `default` (0.0) if that fails.
fn float(value: &Value, default: Option<Value>, kwargs: Kwargs) -> Result {
    let default = default.or(kwargs.get("default")?).unwrap_or_else(|| Value::from(0.0));
    kwargs.assert_all_used()?;
    if let Some(text) = value.as_str() {
        return Ok(text.trim_matches(methods::is_space).parse::<f64>().map_or(default, Value::from));
    }
    Ok(match value.kind() {
        ValueKind::Bool => Value::from(f64::from(u8::from(value.is_true()))),
        ValueKind::Number => f64::try_from(value.clone()).map_or(default, Value::from),
        _ => default,
    })
}

/// `round(value, precision)`, ties to even, or towards one side with the methods `ceil` and `floor`.
fn round(value: &Value, precision: Option<i32>, method: Option<&str>) -> Result {
    let precision = precision.unwrap_or(0).clamp(-300, 300);
    let method = method.unwrap_or("common");
    let x = f64::try_from(value.clone())?;
    if method == "common" && value.is_integer() && precision >= 0 {
        return Ok(value.clone());
    }
    let scale = 10f64.powi(precision);
    let rounded = match method {
        // Formatting rounds the exact decimal value, as Python does; scaling first would round twice.
        "common" if precision >= 0 => format!("{x:.*}", precision as usize).parse().unwrap_or(x),
        "common" => (x * scale).round_ties_even() / scale,
        "ceil" => (x * scale).ceil() / scale,
        "floor" => (x * scale).floor() / scale,
        other => {
            let message = format!("round method must be common, ceil or floor, got {other:?}");
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        }
    };
    Ok(Value::from(rounded))
}

/// `str(value).strip(chars)`.
fn trim(value: &Value, chars: Option<&str>) -> Result<String> {
    let text = python::to_str(value)?;
    let strips = |c: char| chars.map_or_else(|| methods::is_space(c), |chars| chars.contains(c));
    Ok(text.trim_matches(strips).to_owned())
}
