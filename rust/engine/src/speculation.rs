//! The loop's side of speculation: when the ledger hears of a step, and who hears of the ledger.

use std::time::Duration;

use frizzen_core::{RequestId, SpeculationUsage};
use frizzen_metrics::{EngineMetrics, SpeculationMetrics};
use frizzen_sched::speculation::{
    DrafterConfig, ModeChange, SpeculationConfig, SpeculationTotals, Speculator,
};
use frizzen_sched::{RowEvent, Scheduler, StepOutput, StepPlan};

use crate::cost_cache::CostCache;
use crate::handle::Shared;
use crate::worker::WorkerInfo;

/// Steps between two snapshots for the handle, unless something changes.
const SNAPSHOT_EVERY: u32 = 32;

/// A speculator with its instruments.
#[derive(Debug)]
pub(crate) struct Speculating {
    speculator: Speculator,
    metrics: SpeculationMetrics,
    counted: SpeculationTotals,
    until_snapshot: u32,
    cache: Option<CostCache>,
    /// Measurements that the file of the cache has.
    saved: u64,
}

impl Speculating {
    pub fn new(
        config: SpeculationConfig,
        info: &WorkerInfo,
        metrics: &EngineMetrics,
        shared: &Shared,
    ) -> Result<Self, String> {
        let max_drafts = info.max_drafts;
        if max_drafts == 0 {
            return Err("a drafter was asked for, but the worker verifies no drafts".to_owned());
        }
        if let DrafterConfig::Worker(model) = config.drafter {
            let carried = info.drafter.as_ref().map_or("none", |drafter| &drafter.name);
            if carried != model.name() {
                let wanted = model.name();
                return Err(format!("the drafter {wanted} was asked for, and the worker carries {carried}"));
            }
        }
        let proposed = info.drafter.as_ref().filter(|_| config.is_worker()).map(|drafter| drafter.max_drafts);
        let max_drafts = max_drafts.min(proposed.unwrap_or(max_drafts));
        let speculator = Speculator::new(config, max_drafts, info.experts)?;
        let counted = speculator.totals().clone();
        shared.set_speculation(speculator.status());
        Ok(Self {
            speculator,
            metrics: metrics.speculation(max_drafts),
            counted,
            until_snapshot: 0,
            cache: None,
            saved: 0,
        })
    }

    /// Takes over the times of earlier runs, and keeps those of this one.
    pub fn remember(&mut self, cache: CostCache) {
        if let Some(costs) = cache.load() {
            self.speculator.restore(&costs);
        }
        self.cache = Some(cache);
    }

    /// Keeps what is known about times, if at least `news` measurements are new.
    pub fn save(&mut self, news: u64) {
        let measured = self.speculator.num_measured();
        if let Some(cache) = self.cache.as_ref().filter(|_| measured - self.saved >= news) {
            cache.save(self.speculator.costs());
            self.saved = measured;
        }
    }

    pub fn follow(&mut self, plan: &StepPlan) {
        self.speculator.follow(plan);
    }

    /// Whether some row may get drafts.
    pub fn may_draft(&self) -> bool {
        self.speculator.may_draft()
    }

    /// Drafts per row that the worker is to propose after this step.
    pub fn wanted(&self, plan: &StepPlan) -> u32 {
        self.speculator.wanted(plan)
    }

    /// A step that began when the one before it ended, at `began`, or later, and took until `elapsed` after that.
    pub fn learn(
        &mut self,
        plan: &StepPlan,
        output: &StepOutput,
        events: &[RowEvent],
        began: Duration,
        elapsed: Duration,
    ) {
        self.speculator.learn(plan, output, events, elapsed, plan.planned < began);
    }

    /// Drafts for the next step, once the events are published; then whoever asks is told how things are.
    pub fn propose(
        &mut self,
        scheduler: &mut Scheduler,
        plan: &StepPlan,
        output: &StepOutput,
        events: &[RowEvent],
        shared: &Shared,
    ) {
        if let Some(why) = &output.proposals.failed {
            tracing::error!("the drafter failed, serving goes on without drafts: {why}");
        }
        self.speculator.receive(plan, output);
        self.speculator.propose(scheduler, events);
        for event in events.iter().filter(|event| event.finish.is_some()) {
            self.speculator.forget(event.request);
        }
        let changes = self.speculator.take_changes();
        for change in &changes {
            log(change);
        }
        self.until_snapshot = self.until_snapshot.saturating_sub(1);
        let ended = events.iter().any(|event| event.finish.is_some());
        if self.until_snapshot == 0 || ended || !changes.is_empty() {
            self.until_snapshot = SNAPSHOT_EVERY;
            self.report(shared);
        }
    }

    /// Brings metrics and the handle's snapshot up to date.
    pub fn report(&mut self, shared: &Shared) {
        let status = self.speculator.status();
        let (now, before) = (&status.totals, &self.counted);
        self.metrics.verified(
            now.drafted_rows - before.drafted_rows,
            now.drafts - before.drafts,
            now.accepted - before.accepted,
        );
        for (position, (now, before)) in now.accepted_at.iter().zip(&before.accepted_at).enumerate() {
            self.metrics.accepted_at(position, now - before);
        }
        self.metrics.state(status.on, now.saved);
        self.counted.clone_from(now);
        shared.set_speculation(status);
    }

    pub const fn is_engaged(&self) -> bool {
        self.speculator.is_engaged()
    }

    pub fn usage(&self, request: RequestId) -> Option<Box<SpeculationUsage>> {
        self.speculator.usage(request).cloned().map(Box::new)
    }

    pub fn forget(&mut self, request: RequestId) {
        self.speculator.forget(request);
    }
}

fn log(change: &ModeChange) {
    let state = if change.on { "on" } else { "off" };
    let (reason, rows) = (change.reason.code(), change.rows);
    let gain = format!("{:+.0} %", change.gain * 100.0);
    tracing::info!(reason, rows, expected_gain = gain, "speculation is {state}");
}
