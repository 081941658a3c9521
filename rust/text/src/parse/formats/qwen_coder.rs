//! Qwen3-Coder: `<tool_call><function=NAME><parameter=KEY>` with each value on lines of its own.

use super::elements::{Elements, ElementsSpec};
use crate::parse::frame::FrameSpec;
use crate::parse::registry::{Machine, ToolFormat};
use crate::parse::syntax::{ArgumentSyntax, CallSyntax, EachSyntax};

const FUNCTION: &str = "<function=";

static SPEC: ElementsSpec = ElementsSpec {
    function: FUNCTION,
    name_end: ">",
    parameter: "<parameter=",
    key_end: ">",
    key: |key| (key, None),
    value_end: "</parameter>",
    function_end: "</function>",
    close: "</tool_call>",
    framed: true,
};

pub(in crate::parse) const FORMAT: ToolFormat = ToolFormat {
    name: "qwen3_coder",
    aliases: &["qwen3_xml"],
    // The outer tag is sometimes left out.
    machine: Machine::Frame(FrameSpec::marked(&["<tool_call>", FUNCTION], |marker, tools| {
        Box::new(Elements::new(&SPEC, marker == Some(1), tools))
    })),
    markers: &["<tool_call>", "</tool_call>"],
    syntax: |_| CallSyntax {
        before_name: "<tool_call>\n<function=",
        after_name: ">\n",
        arguments: ArgumentSyntax::Each(EachSyntax {
            before_key: "<parameter=",
            before_json: ">\n",
            before_text: Some(">\n"),
            value_end: "</parameter>",
            frame: "\n",
            after_value: "\n",
            separator: "",
        }),
        end: "</function>\n</tool_call>",
        trigger: Some("<tool_call>"),
        ..CallSyntax::DEFAULT
    },
    ..ToolFormat::DEFAULT
};
