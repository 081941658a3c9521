//! Measured step times from one start to the next, in one small file per model, device, type and kernel plan.
//!
//! What a file says is used at once and outweighed by the first measurements that disagree, so a wrong one costs a few
//! steps and nothing else; that is why it may be lost, and why problems with it are a line in the log at most.
//!
//! Replicas of one server, and servers of one model, share a file. Each replaces it as a whole, so no reader sees half of it,
//! and keeps what others measured and it did not: the next start knows the loads of all of them. Of two that write at the
//! same moment one may lose what it added until it writes again.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{env, fs, io};

use frizzen_sched::speculation::Costs;
use serde::{Deserialize, Serialize};

use crate::worker::WorkerInfo;

/// Files written by this process.
static WRITES: AtomicU64 = AtomicU64::new(0);

/// Of the file's form; another one is not read.
const VERSION: u32 = 1;

/// Where the costs of one machine are kept.
#[derive(Clone, Debug)]
pub(crate) struct CostCache {
    path: PathBuf,
    key: Key,
}

/// What the times belong to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Key {
    version: u32,
    model: String,
    device: String,
    dtype: String,
    drafter: Option<String>,
    /// A hash of the kernel plan.
    plan: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    #[serde(flatten)]
    key: Key,
    costs: Costs,
}

fn hash_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// The directory that `asked` names: `off` is none, nothing is the user's cache.
pub fn directory(asked: Option<&str>) -> Option<PathBuf> {
    match asked {
        Some("off") => None,
        Some(path) => Some(PathBuf::from(path)),
        None => {
            let given = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
            let cache = given("XDG_CACHE_HOME").or_else(|| Some(given("HOME")?.join(".cache")));
            cache.map(|cache| cache.join("frizzen").join("speculation"))
        }
    }
}

impl CostCache {
    /// The file for this worker.
    pub fn new(directory: &Path, info: &WorkerInfo) -> Self {
        let key = Key {
            version: VERSION,
            model: info.model.clone(),
            device: info.device.clone(),
            dtype: info.dtype.clone(),
            drafter: info.drafter.as_ref().map(|drafter| drafter.name.clone()),
            plan: hash_of(&info.plan.get("kernels").unwrap_or(&info.plan).to_string()),
        };
        let path = directory.join(format!("{:016x}.json", hash_of(&key)));
        Self { path, key }
    }

    /// What is known of this machine; `None` if nothing is.
    pub fn load(&self) -> Option<Costs> {
        let text = match fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::debug!(path = %self.path.display(), %error, "step times of earlier runs cannot be read");
                return None;
            }
        };
        match serde_json::from_str::<Stored>(&text) {
            Ok(stored) if stored.key == self.key => Some(stored.costs),
            _ => {
                tracing::debug!(path = %self.path.display(), "step times of another machine are left alone");
                None
            }
        }
    }

    /// Replaces the file as a whole; where others measured what is not in `costs`, that stays.
    pub fn save(&self, mut costs: Costs) {
        if let Some(others) = self.load() {
            costs.complete(others);
        }
        let stored = Stored { key: self.key.clone(), costs };
        // Engines of one process write at the same time too.
        let number = WRITES.fetch_add(1, Ordering::Relaxed);
        let temporary = self.path.with_extension(format!("{}.{number}.tmp", std::process::id()));
        let write = || {
            fs::create_dir_all(self.path.parent().unwrap_or(Path::new(".")))?;
            fs::write(&temporary, serde_json::to_string(&stored)?)?;
            fs::rename(&temporary, &self.path)
        };
        if let Err(error) = write() {
            tracing::debug!(path = %self.path.display(), %error, "step times cannot be kept");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mock::mock_info;

    #[test]
    fn times_come_back_to_the_same_machine_only_and_a_broken_file_is_nothing() {
        let directory = env::temp_dir().join(format!("frizzen-cost-cache-{}", std::process::id()));
        let info = mock_info();
        let cache = CostCache::new(&directory, &info);
        assert_eq!(cache.load(), None);
        let costs = Costs { steps: vec![(1.0, 0.0, 0.01), (1.0, 2.0, 0.0125)], drafting: vec![] };
        cache.save(costs.clone());
        assert_eq!(CostCache::new(&directory, &info).load(), Some(costs));
        let other = WorkerInfo { device: "cuda:0".to_owned(), ..info };
        assert_eq!(CostCache::new(&directory, &other).load(), None);
        fs::write(&cache.path, "{").expect("writable");
        assert_eq!(cache.load(), None);
        fs::remove_dir_all(&directory).expect("ours");
    }

    #[test]
    fn replicas_that_share_a_file_keep_what_the_others_measured() {
        let directory = env::temp_dir().join(format!("frizzen-cost-cache-shared-{}", std::process::id()));
        let info = mock_info();
        let known = |steps: &[(f64, f64, f64)]| Costs { steps: steps.to_vec(), drafting: vec![] };
        std::thread::scope(|scope| {
            for replica in 0..4 {
                let cache = CostCache::new(&directory, &info);
                scope.spawn(move || {
                    for round in 0..20 {
                        cache.save(known(&[(f64::from(1 << replica), 0.0, 0.01 + f64::from(round))]));
                        cache.load().expect("whatever is there is whole");
                    }
                });
            }
        });
        // One after the other nothing is lost, and what one measured again is its own.
        let cache = CostCache::new(&directory, &info);
        cache.save(known(&[(1.0, 0.0, 0.011), (1.0, 4.0, 0.012)]));
        cache.save(known(&[(1.0, 0.0, 0.010), (64.0, 0.0, 0.02)]));
        let steps = cache.load().expect("written").steps;
        for wanted in [(1.0, 0.0, 0.010), (1.0, 4.0, 0.012), (64.0, 0.0, 0.02)] {
            assert!(steps.contains(&wanted), "{wanted:?} in {steps:?}");
        }
        assert!(!steps.contains(&(1.0, 0.0, 0.011)));
        let left = fs::read_dir(&directory).expect("ours").count();
        assert_eq!(left, 1, "temporary files stay");
        fs::remove_dir_all(&directory).expect("ours");
    }

    #[test]
    fn off_is_no_directory() {
        assert_eq!(directory(Some("off")), None);
        assert_eq!(directory(Some("/x")), Some(PathBuf::from("/x")));
    }
}
