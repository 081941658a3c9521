//! Kimi K2: a section of `functions.NAME:INDEX`, which is also the call's id, and its arguments.

use super::section::{Section, SectionSpec};
use crate::parse::frame::FrameSpec;
use crate::parse::registry::{Machine, ToolFormat};
use crate::parse::syntax::CallSyntax;

const SECTION: &str = "<|tool_calls_section_begin|>";
const SECTION_END: &str = "<|tool_calls_section_end|>";
const CALL: &str = "<|tool_call_begin|>";
const ARGUMENTS: &str = "<|tool_call_argument_begin|>";
const CALL_END: &str = "<|tool_call_end|>";

static SPEC: SectionSpec = SectionSpec {
    between: [CALL, SECTION_END, CALL_END],
    args_open: ARGUMENTS,
    close: &[CALL_END, SECTION_END],
    head: |head| {
        let id = head.trim();
        let name = id.rsplit_once(':').map_or(id, |(name, _)| name);
        (name.strip_prefix("functions.").unwrap_or(name), Some(id))
    },
};

pub(in crate::parse) const FORMAT: ToolFormat = ToolFormat {
    name: "kimi_k2",
    aliases: &["kimi"],
    machine: Machine::Frame(FrameSpec::marked(&[SECTION, CALL], |marker, _| {
        Box::new(Section::new(&SPEC, marker == Some(1)))
    })),
    markers: &[SECTION, SECTION_END, CALL, ARGUMENTS, CALL_END],
    syntax: |_| CallSyntax {
        open: SECTION,
        close: SECTION_END,
        separator: Some(""),
        before_name: "<|tool_call_begin|>functions.",
        number: Some(":"),
        after_name: ARGUMENTS,
        end: CALL_END,
        trigger: Some(SECTION),
        ..CallSyntax::DEFAULT
    },
    ..ToolFormat::DEFAULT
};
