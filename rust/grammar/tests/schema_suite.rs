//! JSON Schema's own test suite for draft 2020-12, without its optional part: every group is enforced or refused, and
//! no instance that its schema forbids is ever accepted.
//!
//! `tests/data/draft2020-12.jsonl` holds one group a line: keyword, description, schema, and instances with whether they
//! are valid (from the suite's copy in the source distribution of the `jsonschema` package; its licence is beside it).
//! The counts are those of `docs/structured-output.md`, and this test holds that page to them.

mod common;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use common::compiler;
use frizzen_core::{TokenId, TokenMatcher};
use frizzen_grammar::{Grammar, GrammarSpec};
use serde_json::{Map, Value};

const SUITE: &str = include_str!("data/draft2020-12.jsonl");
const PAGE: &str = include_str!("../../../docs/structured-output.md");
/// Most orders of an object's members that are tried.
const ORDERS: usize = 24;

#[derive(Clone, Copy, Default)]
struct Counts {
    enforced: usize,
    refused: usize,
    /// Instances that are valid and could not be written: the members' order is the schema's, for one.
    narrowed: usize,
    instances: usize,
}

fn orders(keys: &[String]) -> Vec<Vec<String>> {
    let Some((first, rest)) = keys.split_first() else { return vec![Vec::new()] };
    let mut all = Vec::new();
    for order in orders(rest) {
        for at in 0..=order.len() {
            let mut longer = order.clone();
            longer.insert(at, first.clone());
            all.push(longer);
        }
        if all.len() > ORDERS {
            break;
        }
    }
    all
}

/// The texts of a value, with the members of its outermost object in every order.
fn texts(value: &Value) -> Vec<String> {
    let Value::Object(members) = value else { return vec![value.to_string()] };
    let keys: Vec<String> = members.keys().cloned().collect();
    let ordered = orders(&keys).into_iter().map(|order| {
        let members: Map<String, Value> =
            order.into_iter().map(|key| (key.clone(), members[&key].clone())).collect();
        Value::Object(members).to_string()
    });
    ordered.collect()
}

fn accepts(grammar: &Grammar, text: &str) -> bool {
    let mut matcher = grammar.start();
    text.bytes().all(|byte| matcher.accept(TokenId::from(byte)).is_ok()) && matcher.can_end()
}

/// The table of counts as the page has it.
fn table(counts: &BTreeMap<String, Counts>) -> String {
    let mut table = String::from(
        "| keyword | groups enforced | refused | instances | of them valid, not writable | wrong |\n|---|---|---|---|---|---|\n",
    );
    let mut sum = Counts::default();
    for (keyword, count) in counts {
        let Counts { enforced, refused, narrowed, instances } = *count;
        let _ = writeln!(table, "| {keyword} | {enforced} | {refused} | {instances} | {narrowed} | 0 |");
        sum.enforced += enforced;
        sum.refused += refused;
        sum.narrowed += narrowed;
        sum.instances += instances;
    }
    let Counts { enforced, refused, narrowed, instances } = sum;
    let _ = writeln!(table, "| **all** | {enforced} | {refused} | {instances} | {narrowed} | 0 |");
    table
}

#[test]
fn a_schema_of_the_official_suite_is_enforced_or_refused_and_never_wrong() {
    let mut counts: BTreeMap<String, Counts> = BTreeMap::new();
    let mut wrong = Vec::new();
    for line in SUITE.lines() {
        let (keyword, name, schema, instances): (String, String, Value, Vec<(Value, bool)>) =
            serde_json::from_str(line).expect("the suite is JSON");
        let count = counts.entry(keyword.clone()).or_default();
        let compiled = GrammarSpec::json("schema", &schema).and_then(|spec| compiler().compile(&spec));
        let Ok(grammar) = compiled else {
            count.refused += 1;
            continue;
        };
        assert!(grammar.dropped().is_empty(), "nothing is left out unless that was asked for");
        count.enforced += 1;
        for (instance, valid) in instances {
            count.instances += 1;
            match (texts(&instance).iter().any(|text| accepts(&grammar, text)), valid) {
                (true, false) => wrong.push(format!("{keyword}: {name}: {schema} accepts {instance}")),
                (false, true) => count.narrowed += 1,
                _ => {}
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    let table = table(&counts);
    assert!(PAGE.contains(&table), "the counts of docs/structured-output.md have changed:\n{table}");
}
