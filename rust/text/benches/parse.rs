//! What reading a message costs, in text of a token's length.

use divan::counter::BytesCount;
use frizzen_text::parse::{Format, MessageParser, ReasoningFormat, Setup, ToolFormat};

fn main() {
    divan::main();
}

/// A thought, an answer and a call of about 4 KiB each, as a stream of pieces of four bytes.
fn text(format: &str) -> String {
    let prose = "The quick brown fox jumps over the lazy dog; 1 < 2 and [so] on.\n".repeat(64);
    let argument = "echo a b c {d} ".repeat(256);
    let call = match format {
        "hermes" => {
            format!("<tool_call>{{\"name\": \"f\", \"arguments\": {{\"x\": \"{argument}\"}}}}</tool_call>")
        }
        _ => format!("<tool_call><function=f><parameter=x>\n{argument}\n</parameter></function></tool_call>"),
    };
    format!("<think>{prose}</think>{prose}{call}")
}

#[divan::bench(args = ["hermes", "qwen3_coder"])]
fn message(bencher: divan::Bencher<'_, '_>, name: &str) {
    let text = text(name);
    let format = Format { reasoning: ReasoningFormat::named("qwen3"), tools: ToolFormat::named(name) };
    let pieces: Vec<&str> =
        text.as_bytes().chunks(4).map(|piece| std::str::from_utf8(piece).expect("ASCII")).collect();
    bencher.counter(BytesCount::of_str(&text)).bench(|| {
        let mut parser = MessageParser::new(format, &Setup::default());
        let deltas: usize = pieces.iter().map(|piece| parser.push(piece).len()).sum();
        deltas + parser.finish().len()
    });
}
