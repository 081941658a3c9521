//! Where the Python that has frizzen is.
//!
//! A Python that was named is taken as it is. One that is only likely is taken if the package stands in its
//! site-packages: a look at the file system, never a trial run, so that finding costs nothing and has no effects.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

/// The parts of the environment that the search reads.
#[derive(Debug)]
pub struct Places {
    /// `--python`.
    pub flag: Option<PathBuf>,
    /// The working directory.
    pub directory: PathBuf,
    /// An environment variable.
    pub variable: fn(&str) -> Option<OsString>,
}

/// A place that was looked at, and why it was not taken.
#[derive(Debug, PartialEq, Eq)]
struct Miss {
    place: String,
    reason: &'static str,
}

/// No Python was found; says everything that was looked at.
#[derive(Debug, PartialEq, Eq)]
pub struct NotFound(Vec<Miss>);

impl fmt::Display for NotFound {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("no Python with frizzen was found; looked at ")?;
        for (index, miss) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(formatter, "{comma}{} ({})", miss.place, miss.reason)?;
        }
        formatter
            .write_str("; install it with `python3 -m pip install frizzen` or name a Python with --python")
    }
}

/// The Python to run.
///
/// # Errors
/// Every place that was looked at, in order, with what was wrong there.
pub fn find(places: &Places) -> Result<PathBuf, NotFound> {
    // An empty variable is an unset one.
    let named = |name| (places.variable)(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(python) = places.flag.clone().or_else(|| named("FRIZZEN_PYTHON")) {
        return Ok(python);
    }
    let mut misses = Vec::new();
    let environments = [
        ("$VIRTUAL_ENV", named("VIRTUAL_ENV")),
        ("$CONDA_PREFIX", named("CONDA_PREFIX")),
        ("./.venv", Some(places.directory.join(".venv"))),
    ];
    for (name, prefix) in environments {
        let Some(prefix) = prefix else {
            misses.push(Miss { place: name.to_owned(), reason: "not set" });
            continue;
        };
        let python = prefix.join("bin/python");
        match check(&python, &prefix) {
            Ok(()) => return Ok(python),
            Err(reason) => misses.push(Miss { place: python.display().to_string(), reason }),
        }
    }
    match on_path(places.variable) {
        None => misses.push(Miss { place: "python3 on PATH".to_owned(), reason: "not there" }),
        Some(python) => {
            let prefix = python.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
            match check(&python, prefix) {
                Ok(()) => return Ok(python),
                Err(reason) => misses.push(Miss { place: python.display().to_string(), reason }),
            }
        }
    }
    Err(NotFound(misses))
}

fn on_path(variable: fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let path = variable("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join("python3")).find(|python| python.is_file())
}

fn check(python: &Path, prefix: &Path) -> Result<(), &'static str> {
    if !python.is_file() {
        Err("not there")
    } else if has_package(prefix) {
        Ok(())
    } else {
        Err("frizzen is not installed there")
    }
}

/// True if frizzen stands among the packages of this prefix, itself or as a link to its sources.
fn has_package(prefix: &Path) -> bool {
    let entries = |directory: &Path| std::fs::read_dir(directory).into_iter().flatten().flatten();
    let libraries = ["lib", "lib64"].map(|name| prefix.join(name));
    let versions = libraries.iter().flat_map(|library| entries(library)).filter(|entry| {
        let name = entry.file_name();
        name.to_string_lossy().starts_with("python3")
    });
    versions.flat_map(|version| ["site-packages", "dist-packages"].map(|name| version.path().join(name))).any(
        |site| {
            let is_package = |entry: std::fs::DirEntry| {
                let name = entry.file_name();
                let name = name.to_string_lossy();
                name == "frizzen" || (name.starts_with("frizzen-") && name.ends_with(".dist-info"))
            };
            entries(&site).any(is_package)
        },
    )
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// A directory of this test's own, gone afterwards.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new() -> Self {
            static COUNT: AtomicU32 = AtomicU32::new(0);
            let name =
                format!("frizzen-cli-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
            let path = std::env::temp_dir().join(name);
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn file(&self, path: &str) -> PathBuf {
            let path = self.0.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "").unwrap();
            path
        }

        fn places(&self, variable: fn(&str) -> Option<OsString>) -> Places {
            Places { flag: None, directory: self.0.clone(), variable }
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    const UNSET: fn(&str) -> Option<OsString> = |_| None;

    #[test]
    fn a_named_python_is_taken_as_it_is() {
        let scratch = Scratch::new();
        let named = Places { flag: Some("/no/such/python".into()), ..scratch.places(UNSET) };
        assert_eq!(find(&named), Ok("/no/such/python".into()));
        let variable = scratch.places(|name| (name == "FRIZZEN_PYTHON").then(|| "/other/python".into()));
        assert_eq!(find(&variable), Ok("/other/python".into()));
        let both = Places { flag: Some("/no/such/python".into()), ..variable };
        assert_eq!(find(&both), Ok("/no/such/python".into()));
    }

    #[test]
    fn a_guess_is_taken_only_with_the_package() {
        let scratch = Scratch::new();
        let python = scratch.file(".venv/bin/python");
        let error = find(&scratch.places(UNSET)).unwrap_err().to_string();
        assert!(error.contains("frizzen is not installed there"), "{error}");
        scratch.file(".venv/lib/python3.11/site-packages/frizzen/__init__.py");
        assert_eq!(find(&scratch.places(UNSET)), Ok(python));
    }

    #[test]
    fn an_editable_installation_counts() {
        let scratch = Scratch::new();
        let python = scratch.file(".venv/bin/python");
        scratch.file(".venv/lib/python3.12/site-packages/frizzen-0.1.0.dist-info/METADATA");
        assert_eq!(find(&scratch.places(UNSET)), Ok(python));
    }

    #[test]
    fn a_failed_search_names_every_place() {
        let scratch = Scratch::new();
        let empty = scratch.places(|name| (name == "CONDA_PREFIX").then(|| "/opt/none".into()));
        let error = find(&empty).unwrap_err().to_string();
        for place in
            ["$VIRTUAL_ENV (not set)", "/opt/none/bin/python (not there)", ".venv/bin/python", "on PATH"]
        {
            assert!(error.contains(place), "{place} in {error}");
        }
        assert!(error.contains("pip install frizzen") && error.contains("--python"), "{error}");
        assert_eq!(error.lines().count(), 1);
    }
}
