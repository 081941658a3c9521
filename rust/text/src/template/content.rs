//! Does a template read message content as a string or as a list of parts?
//!
//! Nothing in a template says so; it is found by rendering a probe both ways when the template is loaded.

use serde_json::{Value, json};

use super::{ChatTemplate, RenderRequest, Variant};

const PROBE: &str = "7f3b9c-content-probe";

/// The forms of content that a template shows as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContentFormat {
    /// Only strings: lists of text parts are joined.
    Strings,
    /// Only lists of parts: strings are wrapped.
    Parts,
    /// Both: content is passed as it came.
    Both,
}

/// Renders a probe as a string and as a part, and compares.
pub(super) fn detect(template: &ChatTemplate, variant: &Variant) -> ContentFormat {
    let string = shown(template, variant, &json!(PROBE));
    let parts = shown(template, variant, &json!([{"type": "text", "text": PROBE}]));
    match (string, parts) {
        // A list that is printed instead of read shows the probe in quotes, with the list around it.
        (Some(string), Some(parts)) if parts.len() <= string.len() => ContentFormat::Both,
        (None, Some(parts))
            if !parts.contains(&format!("'{PROBE}'")) && !parts.contains(&format!("\"{PROBE}\"")) =>
        {
            ContentFormat::Parts
        }
        _ => ContentFormat::Strings,
    }
}

/// The prompt, if the probe is in it. Templates that insist on a system message get one.
fn shown(template: &ChatTemplate, variant: &Variant, content: &Value) -> Option<String> {
    let user = json!({"role": "user", "content": content});
    let system = json!({"role": "system", "content": content});
    [vec![user.clone()], vec![system, user]].into_iter().find_map(|messages| {
        let request = RenderRequest { add_generation_prompt: true, ..RenderRequest::default() };
        let prompt = template.render_prepared(variant, &messages, &request).ok()?;
        prompt.contains(PROBE).then_some(prompt)
    })
}
