//! Why a row has no token: the model's fault, or that of its own request.
//!
//! Workers tell only that nothing was left to choose from. Whether the request's masks and token rules had already seen to
//! that is recomputed here, for rows that failed and no others.

use frizzen_core::{Error, TokenId};

use crate::plan::StepPlan;
use crate::state::State;

/// The failure of row `at` of a plan, which the worker described by `message`.
///
/// `Invalid` if the request itself allows no token at one of the row's positions, else `Request`.
pub(crate) fn of_row(state: &State, plan: &StepPlan, at: usize, message: &str) -> Error {
    let samples = plan.sample_rows.iter().enumerate().filter(|(_, row)| **row as usize == at);
    let mut masked = false;
    for ((sample, _), drafts) in samples.zip(0..) {
        let mask = mask_of(plan, sample);
        masked |= mask.is_some();
        if allows_nothing(state, mask, drafts) {
            let param = if masked { "structured_outputs" } else { "allowed_token_ids" };
            let message = "no token is left to this request: its structured output, bad_words, allowed_token_ids and \
                           min_tokens have none in common";
            return Error::invalid(param, message);
        }
    }
    Error::Request { message: message.to_owned() }
}

fn mask_of(plan: &StepPlan, sample: usize) -> Option<&[u32]> {
    let at = plan.mask_rows.binary_search(&(sample as u32)).ok()?;
    let words = plan.masks.len() / plan.mask_rows.len();
    plan.masks.get(at * words..(at + 1) * words)
}

/// True if no token may come `drafts` tokens after the known ones.
fn allows_nothing(state: &State, mask: Option<&[u32]>, drafts: u32) -> bool {
    let params = &state.request.params;
    let held_back = state.num_outputs() + drafts < params.min_tokens;
    let open = |token: TokenId| {
        let set =
            |mask: &[u32]| mask.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1);
        mask.is_none_or(set) && !(held_back && state.stops.contains(&token))
    };
    match (&params.allowed_token_ids, mask) {
        (Some(allowed), _) => !allowed.iter().any(|token| open(*token)),
        (None, Some(mask)) => !(0..mask.len() as u32 * 32).any(open),
        (None, None) => false,
    }
}
