//! Chat templates: messages to a prompt, as Python's `transformers` renders them.
//!
//! The engine is minijinja; [`python`] gives it Python's values (`str`, `repr`, `json.dumps`) and [`methods`] Python's
//! string methods. A golden corpus made with `transformers` is the test.
//!
//! Templates come with models and are not trusted to end: a render has a fuel limit (instructions), a recursion limit
//! and an output limit, and each exceeded limit is an error of that request. What one instruction costs is not bounded:
//! a template that doubles a string, or puts a list into itself, again and again asks for much memory or time in few
//! instructions. Templates taken from *requests* must therefore stay off unless the clients are trusted.

mod content;
mod filters;
mod messages;
mod methods;
mod python;
mod source;
mod strftime;

use std::collections::BTreeMap;
use std::io::Write;

use frizzen_core::{Error, Result};
use minijinja::{AutoEscape, Environment, ErrorKind, UndefinedBehavior};
use serde_json::{Map, Value};

use crate::{LoadError, NamedTemplate, Tokenizer};
use content::ContentFormat;

/// Instructions of one render. A template spends some hundreds on a message.
const FUEL: u64 = 10_000_000;
const MAX_DEPTH: usize = 128;
/// Bytes of one prompt.
pub(crate) const MAX_OUTPUT: usize = 1 << 26;

const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";
/// Variables of the call itself; `kwargs` must not replace them.
const RESERVED: [&str; 5] = ["messages", "tools", "documents", "add_generation_prompt", "strftime_now"];

/// A compiled chat template with the special tokens it may name. Immutable; share it in an `Arc`.
pub struct ChatTemplate {
    environment: Environment<'static>,
    default: Variant,
    /// Used instead of the default if the request has tools.
    tool_use: Option<Variant>,
    special_tokens: BTreeMap<String, String>,
}

/// One template and what was found out about it.
struct Variant {
    name: &'static str,
    source: String,
    content: ContentFormat,
}

/// What to render.
#[derive(Clone, Copy, Debug, Default)]
pub struct RenderRequest<'a> {
    /// The conversation in the API's form: objects with `role`, `content`, `tool_calls`, ...
    pub messages: &'a [Value],
    /// Tools in the API's form (`{"type": "function", "function": {...}}`).
    pub tools: Option<&'a [Value]>,
    /// Documents for retrieval templates.
    pub documents: Option<&'a [Value]>,
    /// End with the header of the answer.
    pub add_generation_prompt: bool,
    /// Leave the last message open, so that the model continues it. Excludes `add_generation_prompt`.
    pub continue_final_message: bool,
    /// Further variables (`chat_template_kwargs`), such as `enable_thinking`.
    pub kwargs: Option<&'a Map<String, Value>>,
    /// What `strftime_now` shows: seconds since 1970-01-01T00:00:00 on the wall clock to be shown.
    pub local_time: i64,
}

impl ChatTemplate {
    /// The templates that came with `tokenizer`, or `None` if it has none.
    pub fn of_tokenizer(tokenizer: &Tokenizer) -> std::result::Result<Option<Self>, LoadError> {
        let templates = tokenizer.chat_templates();
        if templates.is_empty() {
            return Ok(None);
        }
        Self::named(templates, tokenizer.special_tokens().names.clone()).map(Some)
    }

    /// One template from its source.
    pub fn new(
        source: &str,
        special_tokens: BTreeMap<String, String>,
    ) -> std::result::Result<Self, LoadError> {
        let only = NamedTemplate { name: DEFAULT.to_owned(), source: source.to_owned() };
        Self::named(&[only], special_tokens)
    }

    fn named(
        templates: &[NamedTemplate],
        special_tokens: BTreeMap<String, String>,
    ) -> std::result::Result<Self, LoadError> {
        let mut environment = environment();
        let mut add = |name: &'static str| -> std::result::Result<Option<Variant>, LoadError> {
            let Some(template) = templates.iter().find(|template| template.name == name) else {
                return Ok(None);
            };
            let source = source::prepare(&template.source);
            environment
                .add_template_owned(name, source.clone())
                .map_err(|e| LoadError::Template(python::describe(&e)))?;
            Ok(Some(Variant { name, source, content: ContentFormat::Strings }))
        };
        let tool_use = add(TOOL_USE)?;
        let default = add(DEFAULT)?.ok_or_else(|| {
            let names: Vec<&str> = templates.iter().map(|template| template.name.as_str()).collect();
            LoadError::Template(format!("there is no template named default, only {names:?}"))
        })?;
        let mut template = Self { environment, default, tool_use, special_tokens };
        template.default.content = content::detect(&template, &template.default);
        if let Some(mut variant) = template.tool_use.take() {
            variant.content = content::detect(&template, &variant);
            template.tool_use = Some(variant);
        }
        Ok(template)
    }

    /// False if no template mentions tools: they would be dropped from the prompt in silence.
    pub fn reads_tools(&self) -> bool {
        self.tool_use.is_some() || self.default.source.contains("tools")
    }

    /// The source of the template for requests with tools, if it is one of its own, and of the default one.
    pub fn sources(&self) -> impl Iterator<Item = &str> {
        self.tool_use.iter().chain([&self.default]).map(|variant| variant.source.as_str())
    }

    /// The prompt for `request`.
    ///
    /// The messages are checked and brought into the form templates expect first: `null` fields are dropped, tool-call
    /// arguments become objects, reasoning is found under each of its names, `developer` becomes `system` for templates
    /// that do not know it, and text parts become what the template reads. Errors name `messages`, or the option at
    /// fault.
    pub fn render(&self, request: &RenderRequest<'_>) -> Result<String> {
        if request.continue_final_message && request.add_generation_prompt {
            return Err(Error::invalid(
                "continue_final_message",
                "continue_final_message and add_generation_prompt exclude each other, got both true",
            ));
        }
        if let Some(name) =
            request.kwargs.and_then(|kwargs| RESERVED.into_iter().find(|name| kwargs.contains_key(*name)))
        {
            return Err(Error::invalid(
                "chat_template_kwargs",
                format!("chat_template_kwargs must not set {name}, it is a field of the request"),
            ));
        }
        let variant = match (&self.tool_use, request.tools) {
            (Some(tool_use), Some(tools)) if !tools.is_empty() => tool_use,
            _ => &self.default,
        };
        let mut messages = messages::prepare(request.messages, &variant.source, variant.content)?;
        let tag = |messages: &mut [Value]| messages::tag_final(messages, &variant.source);
        let continued = request.continue_final_message.then(|| tag(&mut messages)).transpose()?;
        let prompt = match self.render_prepared(variant, &messages, request) {
            Ok(prompt) => prompt,
            // Some templates add `content` to other text without asking whether it is there.
            Err(_) if messages::fill_missing_content(&mut messages) => {
                self.render_prepared(variant, &messages, request)?
            }
            Err(error) => return Err(error),
        };
        match continued {
            Some(text) => messages::cut_at_tag(prompt, &text),
            None => Ok(prompt),
        }
    }

    fn render_prepared(
        &self,
        variant: &Variant,
        messages: &[Value],
        request: &RenderRequest<'_>,
    ) -> Result<String> {
        let template =
            self.environment.get_template(variant.name).expect("each variant was added by its name");
        let mut context: BTreeMap<&str, minijinja::Value> = BTreeMap::new();
        for (name, token) in &self.special_tokens {
            context.insert(name, minijinja::Value::from(token.as_str()));
        }
        for (name, value) in request.kwargs.into_iter().flatten() {
            context.insert(name, minijinja::Value::from_serialize(value));
        }
        context.insert("messages", minijinja::Value::from_serialize(messages));
        context.insert("tools", minijinja::Value::from_serialize(request.tools));
        context.insert("documents", minijinja::Value::from_serialize(request.documents));
        context.insert("add_generation_prompt", request.add_generation_prompt.into());
        let local_time = request.local_time;
        let strftime_now = move |format: &str| strftime::format(format, local_time);
        context.insert("strftime_now", minijinja::Value::from_function(strftime_now));

        let mut output = LimitedOutput(Vec::new());
        template.render_captured_to(context, &mut output).map_err(|e| refusal(&e))?;
        String::from_utf8(output.0).map_err(|e| Error::invalid("messages", format!("chat template: {e}")))
    }
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate").field("source", &self.default.source).finish_non_exhaustive()
    }
}

fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    env.set_trim_blocks(true);
    env.set_lstrip_blocks(true);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_undefined_behavior(UndefinedBehavior::Lenient);
    env.set_recursion_limit(MAX_DEPTH);
    env.set_fuel(Some(FUEL));
    env.set_formatter(python::format);
    env.set_unknown_method_callback(methods::call);
    filters::install(&mut env);
    env
}

fn refusal(error: &minijinja::Error) -> Error {
    let message = match error.kind() {
        ErrorKind::OutOfFuel => format!("chat template exceeded its work limit of {FUEL} instructions"),
        ErrorKind::WriteFailure => format!("chat template exceeded its output limit of {MAX_OUTPUT} bytes"),
        _ => format!("chat template refused the messages: {}", python::describe(error)),
    };
    Error::invalid("messages", message)
}

/// Refuses to grow beyond [`MAX_OUTPUT`].
struct LimitedOutput(Vec<u8>);

impl Write for LimitedOutput {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_OUTPUT {
            return Err(std::io::ErrorKind::OutOfMemory.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
