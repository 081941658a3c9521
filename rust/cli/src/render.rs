//! `frizzen render`: a conversation as the model would see it, without a model.

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use frizzen_server::TextModel;
use frizzen_server::request::Fields;
use frizzen_server::request::chat::conversation;
use frizzen_text::Tokenizer;
use serde_json::json;

/// `frizzen render MODEL [FILE]`
#[derive(Args, Debug)]
pub struct RenderArgs {
    /// A directory with a tokenizer.json, or a .gguf file
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// The body of a chat request as JSON; standard input if it is left out
    #[arg(value_name = "FILE")]
    body: Option<PathBuf>,
    /// A file with the chat template to use instead of the model's
    #[arg(long, value_name = "FILE")]
    chat_template: Option<PathBuf>,
}

/// Prints `{"prompt":...,"count":...,"tokens":[...]}`.
pub fn render(args: &RenderArgs) -> Result<ExitCode, String> {
    let body = read(args.body.as_deref())?;
    let model = load(args)?;
    let refused = |error: frizzen_server::error::ApiError| error.message.into_owned();
    let conversation =
        Fields::parse_untabled(&body).and_then(|mut fields| conversation(&mut fields)).map_err(refused)?;
    let prompt = model.render(&conversation).map_err(refused)?;
    let tokens = model.tokenizer.encode(&prompt, false).map_err(|error| error.to_string())?;
    let shown = json!({"prompt": prompt, "count": tokens.len(), "tokens": tokens});
    writeln!(std::io::stdout(), "{shown}").map_err(|error| format!("cannot write: {error}"))?;
    Ok(ExitCode::SUCCESS)
}

fn read(path: Option<&Path>) -> Result<Vec<u8>, String> {
    let mut body = Vec::new();
    let read = match path {
        Some(path) => std::fs::File::open(path).and_then(|mut file| file.read_to_end(&mut body)),
        None => std::io::stdin().read_to_end(&mut body),
    };
    let name = path.map_or_else(|| "standard input".to_owned(), |path| path.display().to_string());
    read.map_err(|error| format!("cannot read {name}: {error}"))?;
    Ok(body)
}

fn load(args: &RenderArgs) -> Result<TextModel, String> {
    let tokenizer = Tokenizer::load(&args.model).map_err(|error| error.to_string())?;
    TextModel::load(Arc::new(tokenizer), args.chat_template.as_deref()).map_err(|error| error.to_string())
}
