//! `/v1/speculation`: how drafts fare, in one engine or in several.

use frizzen_engine::EngineHandle;
use serde_json::{Value, json};

/// How speculation does in the engine of this process.
pub fn status(engine: &EngineHandle) -> Value {
    let Some(status) = engine.speculation() else { return json!({"drafter": null}) };
    let totals = &status.totals;
    let steps = status.step_seconds.iter().map(|(length, seconds)| json!([length, seconds * 1e3]));
    let chances = status.first_draft_chance.iter().map(|(matched, chance)| json!([matched, chance]));
    json!({
        "drafter": status.drafter,
        "failure": status.failure,
        "max_drafts": status.max_drafts,
        "synthetic": status.synthetic,
        "default": status.default,
        "auto": {
            "on": status.on,
            "reason": status.reason.code(),
            "expected_gain": status.expected_gain,
            "account_steps": status.account,
        },
        "rows": status.rows,
        "step_ms_by_drafts_per_row": steps.collect::<Vec<_>>(),
        "first_draft_chance_by_match": chances.collect::<Vec<_>>(),
        "totals": {
            "drafted_rows": totals.drafted_rows,
            "drafts": totals.drafts,
            "accepted": totals.accepted,
            "accepted_by_position": totals.accepted_at,
            "saved_ms": totals.saved * 1e3,
        },
    })
}

/// What a replica says of itself to its front end.
pub fn report(engine: &EngineHandle) -> String {
    status(engine).to_string()
}

/// The engines one by one, and their totals added up. Whether drafts pay off is each engine's own affair, which only its
/// own entry tells. `reports` are by rank; an engine that has said nothing yet has an empty one.
pub fn merged<'a>(reports: impl Iterator<Item = (u32, &'a str)>) -> Value {
    let mut engines: Vec<Value> = Vec::new();
    let mut all = json!({"drafter": null});
    for (rank, report) in reports {
        let mut status: Value = serde_json::from_str(report).unwrap_or_else(|_| json!({"drafter": null}));
        if all["drafter"].is_null() && !status["drafter"].is_null() {
            for name in ["drafter", "failure", "max_drafts", "synthetic", "default", "totals"] {
                all[name] = status[name].clone();
            }
        } else if let (Some(sum), Some(more)) = (all.get_mut("totals"), status.get("totals")) {
            add(sum, more);
        }
        status["engine"] = rank.into();
        engines.push(status);
    }
    all["engines"] = engines.into();
    all
}

/// Adds numbers to numbers, members to members, items to items.
fn add(sum: &mut Value, more: &Value) {
    match (sum, more) {
        (Value::Object(sum), Value::Object(more)) => {
            for (name, value) in more {
                add(sum.entry(name.clone()).or_insert(Value::Null), value);
            }
        }
        (Value::Array(sum), Value::Array(more)) => {
            sum.resize(sum.len().max(more.len()), Value::Null);
            for (sum, more) in sum.iter_mut().zip(more) {
                add(sum, more);
            }
        }
        (sum @ Value::Null, more) => *sum = more.clone(),
        (sum, more) => {
            let whole = sum.as_u64().zip(more.as_u64()).map(|(a, b)| json!(a + b));
            let real = || sum.as_f64().zip(more.as_f64()).map(|(a, b)| json!(a + b));
            if let Some(total) = whole.or_else(real) {
                *sum = total;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_are_added_up_and_one_that_has_said_nothing_is_nothing() {
        let one = |drafts: u64, saved: f64| {
            json!({"drafter": "ngram", "max_drafts": 3, "totals": {"drafts": drafts, "saved_ms": saved,
                "accepted_by_position": [drafts, 1]}})
            .to_string()
        };
        let (first, second) = (one(5, -1.5), one(7, 2.0));
        let all = merged([(0, ""), (1, first.as_str()), (2, second.as_str())].into_iter());
        assert_eq!((&all["drafter"], &all["max_drafts"]), (&json!("ngram"), &json!(3)));
        assert_eq!(all["totals"], json!({"drafts": 12, "saved_ms": 0.5, "accepted_by_position": [12, 2]}));
        assert_eq!(all["engines"].as_array().unwrap().len(), 3);
        assert_eq!((&all["engines"][0]["drafter"], &all["engines"][2]["engine"]), (&json!(null), &json!(2)));
    }
}
