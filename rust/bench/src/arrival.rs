//! When requests are due.
//!
//! Gaps are drawn in a time in which the mean rate is 1 and then mapped through the inverse of the expected number of
//! arrivals, so that a ramp, a constant rate and "all at once" are one formula.

use std::time::Duration;

use crate::draw::Draw;

/// The law of arrivals.
#[derive(Clone, Copy, Debug)]
pub struct Arrivals {
    /// Requests per second; infinite: all are due at once.
    pub rate: f64,
    /// Shape of the gamma distribution of the gaps: 1 is a Poisson process, less is burstier, more is steadier.
    pub burstiness: f64,
    /// Time in which the rate rises from 0 to `rate`, linearly. If the rate is infinite, time over which the first
    /// `max_concurrency` requests are spread.
    pub ramp_up: Duration,
    /// Requests in flight.
    pub max_concurrency: Option<usize>,
}

impl Arrivals {
    /// When each of `count` requests is due, from the start of the run, in order.
    pub fn schedule(&self, count: usize, draw: &mut Draw) -> Vec<Duration> {
        if self.rate.is_infinite() {
            let spread = self.max_concurrency.unwrap_or(count).clamp(1, count.max(1));
            return (0..count)
                .map(|index| self.ramp_up.mul_f64(index.min(spread) as f64 / spread as f64))
                .collect();
        }
        let mut expected = 0.0;
        let due = (0..count).map(|_| {
            expected += draw.gamma(self.burstiness);
            Duration::from_secs_f64(self.time_of(expected))
        });
        due.collect()
    }

    /// Seconds after which `expected` arrivals are expected.
    fn time_of(&self, expected: f64) -> f64 {
        let ramp = self.ramp_up.as_secs_f64();
        let in_ramp = self.rate * ramp / 2.0;
        if expected < in_ramp {
            (2.0 * ramp * expected / self.rate).sqrt()
        } else {
            ramp + (expected - in_ramp) / self.rate
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn law(rate: f64, ramp_up: u64) -> Arrivals {
        Arrivals { rate, burstiness: 1.0, ramp_up: Duration::from_secs(ramp_up), max_concurrency: Some(4) }
    }

    #[test]
    fn the_mean_rate_is_what_was_asked_for_at_every_burstiness() {
        for burstiness in [0.3, 1.0, 10.0] {
            let due = Arrivals { burstiness, ..law(50.0, 0) }.schedule(20_000, &mut Draw::new(3));
            assert!(due.is_sorted());
            let rate = due.len() as f64 / due[due.len() - 1].as_secs_f64();
            assert!((rate / 50.0 - 1.0).abs() < 0.05, "{burstiness}: {rate}");
        }
    }

    #[test]
    fn a_ramp_sends_half_of_what_the_full_rate_would() {
        let due = law(100.0, 10).schedule(2_000, &mut Draw::new(4));
        let within = |seconds| due.iter().filter(|due| due.as_secs_f64() < seconds).count() as f64;
        assert!((within(10.0) / 500.0 - 1.0).abs() < 0.15, "{}", within(10.0));
        assert!((within(5.0) / 125.0 - 1.0).abs() < 0.3, "{}", within(5.0));
    }

    #[test]
    fn without_a_rate_a_ramp_spreads_the_first_wave() {
        let due = law(f64::INFINITY, 8).schedule(6, &mut Draw::new(5));
        assert_eq!(due.iter().map(Duration::as_secs).collect::<Vec<_>>(), [0, 2, 4, 6, 8, 8]);
        assert_eq!(law(f64::INFINITY, 0).schedule(3, &mut Draw::new(5)), [Duration::ZERO; 3]);
        assert!(law(f64::INFINITY, 8).schedule(0, &mut Draw::new(5)).is_empty());
    }
}
