//! `DeepSeek`. V3 and R1 put the arguments into a fence after `function`, a separator and the name; V3.1 has the name, the
//! separator and the arguments; V3.2 and V4 have elements with `DSML` in their names, and differ in what the calls stand in.

use super::elements::{Elements, ElementsSpec};
use super::section::{Section, SectionSpec};
use crate::parse::frame::FrameSpec;
use crate::parse::registry::{Machine, ToolFormat};
use crate::parse::schema::Kind;
use crate::parse::syntax::{ArgumentSyntax, CallSyntax, EachSyntax};

const SECTION: &str = "<｜tool▁calls▁begin｜>";
const SECTION_END: &str = "<｜tool▁calls▁end｜>";
const CALL: &str = "<｜tool▁call▁begin｜>";
const SEPARATOR: &str = "<｜tool▁sep｜>";
const CALL_END: &str = "<｜tool▁call▁end｜>";
const MARKERS: &[&str] = &[SECTION, SECTION_END, CALL, SEPARATOR, CALL_END];

const V3: SectionSpec = SectionSpec {
    between: [CALL, SECTION_END, CALL_END],
    args_open: "```json",
    close: &[CALL_END, SECTION_END],
    head: |head| (head.rsplit_once(SEPARATOR).map_or(head, |(_, name)| name).trim(), None),
};

static V3_SPEC: SectionSpec = V3;
static V31: SectionSpec = SectionSpec { args_open: SEPARATOR, head: |head| (head.trim(), None), ..V3 };

pub(in crate::parse) const FORMAT_V3: ToolFormat = ToolFormat {
    name: "deepseek_v3",
    aliases: &["deepseek_r1"],
    machine: Machine::Frame(FrameSpec::marked(&[SECTION, CALL], |marker, _| {
        Box::new(Section::new(&V3_SPEC, marker == Some(1)))
    })),
    markers: MARKERS,
    syntax: |_| CallSyntax {
        open: SECTION,
        close: SECTION_END,
        before_name: "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
        after_name: "\n```json\n",
        end: "\n```<｜tool▁call▁end｜>",
        trigger: Some(SECTION),
        ..CallSyntax::DEFAULT
    },
    ..ToolFormat::DEFAULT
};

pub(in crate::parse) const FORMAT_V31: ToolFormat = ToolFormat {
    name: "deepseek_v31",
    aliases: &[],
    machine: Machine::Frame(FrameSpec::marked(&[SECTION, CALL], |marker, _| {
        Box::new(Section::new(&V31, marker == Some(1)))
    })),
    syntax: |_| CallSyntax {
        open: SECTION,
        close: SECTION_END,
        separator: Some(""),
        before_name: CALL,
        after_name: SEPARATOR,
        end: CALL_END,
        trigger: Some(SECTION),
        ..CallSyntax::DEFAULT
    },
    ..FORMAT_V3
};

const V32_SPEC: ElementsSpec = ElementsSpec {
    function: "<｜DSML｜invoke name=\"",
    name_end: "\">",
    parameter: "<｜DSML｜parameter name=\"",
    key_end: "\">",
    key: |key| match key.split_once("\" string=\"") {
        Some((key, "true")) => (key, Some(Kind::Text)),
        Some((key, _)) => (key, Some(Kind::Json)),
        None => (key, None),
    },
    value_end: "</｜DSML｜parameter>",
    function_end: "</｜DSML｜invoke>",
    close: "</｜DSML｜function_calls>",
    framed: false,
};
static V32: ElementsSpec = V32_SPEC;
static V4: ElementsSpec = ElementsSpec { close: "</｜DSML｜tool_calls>", ..V32_SPEC };

/// What V3.2 and V4 have in common.
const DSML_SYNTAX: CallSyntax = CallSyntax {
    before_name: "<｜DSML｜invoke name=\"",
    after_name: "\">\n",
    arguments: ArgumentSyntax::Each(EachSyntax {
        before_key: "<｜DSML｜parameter name=\"",
        before_json: "\" string=\"false\">",
        before_text: Some("\" string=\"true\">"),
        value_end: "</｜DSML｜parameter>",
        frame: "",
        after_value: "\n",
        separator: "",
    }),
    end: "</｜DSML｜invoke>",
    ..CallSyntax::DEFAULT
};

pub(in crate::parse) const FORMAT_V32: ToolFormat = ToolFormat {
    name: "deepseek_v32",
    machine: Machine::Frame(FrameSpec::marked(&["<｜DSML｜function_calls>"], |_, tools| {
        Box::new(Elements::new(&V32, false, tools))
    })),
    markers: &["｜DSML｜"],
    syntax: |_| CallSyntax {
        open: "<｜DSML｜function_calls>\n",
        close: "\n</｜DSML｜function_calls>",
        trigger: Some("<｜DSML｜function_calls>"),
        ..DSML_SYNTAX
    },
    ..ToolFormat::DEFAULT
};

pub(in crate::parse) const FORMAT_V4: ToolFormat = ToolFormat {
    name: "deepseek_v4",
    machine: Machine::Frame(FrameSpec::marked(&["<｜DSML｜tool_calls>"], |_, tools| {
        Box::new(Elements::new(&V4, false, tools))
    })),
    syntax: |_| CallSyntax {
        open: "<｜DSML｜tool_calls>\n",
        close: "\n</｜DSML｜tool_calls>",
        trigger: Some("<｜DSML｜tool_calls>"),
        ..DSML_SYNTAX
    },
    ..FORMAT_V32
};
