//! Draft lengths by a global ranking (`specs/serving.md` 1.7): the most likely drafts of all rows, as many as give the
//! most expected tokens per second.

/// One row's drafts. The chance that draft `i` and all before it are right must not rise with `i`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Offer {
    /// Survival of each draft.
    pub survival: Vec<f64>,
}

/// The best number of drafts, and what is expected of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// Drafts over all rows.
    pub drafts: usize,
    /// Expected tokens of the step.
    pub tokens: f64,
    /// Expected tokens per second.
    pub rate: f64,
}

/// Every offered draft, the most likely first: chance, row and place in its row.
///
/// Ties go to the earlier draft, so that equal survivals stay prefixes.
fn ranked(offers: &[Offer]) -> Vec<(f64, usize, usize)> {
    let mut ranked: Vec<(f64, usize, usize)> = Vec::new();
    for (row, offer) in offers.iter().enumerate() {
        ranked.extend(offer.survival.iter().enumerate().map(|(at, survival)| (*survival, row, at)));
    }
    ranked.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.2.cmp(&b.2)).then(a.1.cmp(&b.1)));
    ranked
}

/// Numbers of drafts up to which each is tried; of more, about as many again.
const EXACT: usize = 64;

/// The number of drafts, of at most `most` survivals that fall, that gives the most expected tokens per second.
fn best(survivals: impl Iterator<Item = f64>, most: usize, base: f64, cost: impl Fn(usize) -> f64) -> Choice {
    let stride = (most / EXACT).max(1);
    let mut tokens = base;
    let mut best = Choice { drafts: 0, tokens, rate: base / cost(0) };
    for (at, survival) in survivals.enumerate() {
        tokens += survival;
        if at + 1 > EXACT && !(at + 1).is_multiple_of(stride) && at + 1 != most {
            continue;
        }
        let rate = tokens / cost(at + 1);
        if rate > best.rate {
            best = Choice { drafts: at + 1, tokens, rate };
        }
    }
    best
}

/// The most drafts that a row is offered.
pub fn longest(offers: &[Offer]) -> usize {
    offers.iter().map(|offer| offer.survival.len()).max().unwrap_or(0)
}

/// Chooses how many drafts per row, one of the rising `lengths` or as many as there are, are worth being proposed: `cost` is the time of a step that
/// proposes so many and verifies drafts of the step before it. Returns the length and what is expected of it.
pub fn choose_proposal(
    outlook: &[Offer],
    base: f64,
    lengths: impl Iterator<Item = usize>,
    cost: impl Fn(usize, usize) -> f64,
) -> (usize, Choice) {
    let ranked = ranked(outlook);
    let mut chosen = (0, Choice { drafts: 0, tokens: base, rate: base / cost(0, 0) });
    let longest = longest(outlook);
    let mut before = 0;
    for length in lengths.map(|length| length.min(longest)) {
        if std::mem::replace(&mut before, length) == length {
            continue;
        }
        let survivals = ranked.iter().filter(|(_, _, at)| *at < length).map(|(survival, _, _)| *survival);
        let most = outlook.iter().map(|offer| offer.survival.len().min(length)).sum();
        let choice = best(survivals, most, base, |drafts| cost(length, drafts));
        if choice.drafts > 0 && choice.rate > chosen.1.rate {
            chosen = (length, choice);
        }
    }
    chosen
}

/// Chooses `d` to maximise `(base + sum of the d greatest survivals) / cost(d)`; the fewest among equals.
///
/// `base` is what the step yields without these drafts, `cost` its time in seconds. Since survival never rises along a
/// row, the drafts chosen are a prefix of each row: `lengths` gets their counts.
pub fn choose_lengths(
    offers: &[Offer],
    base: f64,
    cost: impl Fn(usize) -> f64,
    lengths: &mut Vec<u32>,
) -> Choice {
    let ranked = ranked(offers);
    let best = best(ranked.iter().map(|(survival, _, _)| *survival), ranked.len(), base, cost);
    lengths.clear();
    lengths.resize(offers.len(), 0);
    for (_, row, _) in &ranked[..best.drafts] {
        lengths[*row] += 1;
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(conditional: &[f64]) -> Offer {
        let survive = |survival: &mut f64, chance: &f64| {
            *survival *= chance;
            Some(*survival)
        };
        Offer { survival: conditional.iter().scan(1.0, survive).collect() }
    }

    #[test]
    fn the_worked_examples_of_the_specification() {
        // Two rows, two tokens besides drafts; drafting costs 1, verifying 2 tokens 10, 3 and 4 tokens 11.
        let offers = [offer(&[0.9, 0.8, 0.5]), offer(&[0.6, 0.5, 0.5])];
        for (long, expected) in [(20.0, vec![2, 0]), (15.0, vec![3, 3])] {
            let verify = |tokens: usize| match tokens {
                2 => 10.0,
                3 | 4 => 11.0,
                _ => long,
            };
            let mut lengths = Vec::new();
            let choice = choose_lengths(&offers, 2.0, |drafts| 1.0 + verify(2 + drafts), &mut lengths);
            assert_eq!(lengths, expected);
            assert_eq!(choice.drafts, expected.iter().sum::<u32>() as usize);
        }
    }

    #[test]
    fn lengths_are_the_best_of_all_that_could_be_chosen() {
        let offers = [offer(&[0.7, 0.9, 0.2]), offer(&[0.5, 0.5]), offer(&[0.95, 0.1, 0.9])];
        for slope in [0.0, 0.02, 0.1, 0.3, 1.0] {
            let cost = |drafts: usize| 1.0 + slope * drafts as f64;
            let mut lengths = Vec::new();
            let choice = choose_lengths(&offers, 3.0, cost, &mut lengths);
            let rate = |lengths: [usize; 3]| {
                let tokens: f64 = offers.iter().zip(lengths).flat_map(|(o, n)| &o.survival[..n]).sum();
                (3.0 + tokens) / cost(lengths.iter().sum())
            };
            let all = (0..=3).flat_map(|a| (0..=2).flat_map(move |b| (0..=3).map(move |c| [a, b, c])));
            let best = all.map(rate).fold(0.0, f64::max);
            assert!((choice.rate - best).abs() < 1e-12, "slope {slope}: {} of {best}", choice.rate);
            let chosen = [0, 1, 2].map(|row| lengths[row] as usize);
            assert!((rate(chosen) - best).abs() < 1e-12);
        }
    }
}
