//! Markers in a text that arrives character by character.

/// Finds markers and holds back what may still become one. No marker of a set may contain another one.
#[derive(Clone, Debug, Default)]
pub(super) struct Scan {
    /// A proper prefix of some marker.
    held: String,
}

impl Scan {
    /// Takes a character and appends to `released` what is certainly no part of a marker. Returns the index of the
    /// marker that the character completed.
    pub(super) fn feed(&mut self, c: char, markers: &[&str], released: &mut String) -> Option<usize> {
        if self.held.is_empty() && !markers.iter().any(|marker| marker.starts_with(c)) {
            released.push(c);
            return None;
        }
        self.held.push(c);
        while !self.held.is_empty() {
            if let Some(index) = markers.iter().position(|marker| *marker == self.held) {
                self.held.clear();
                return Some(index);
            }
            if markers.iter().any(|marker| marker.starts_with(self.held.as_str())) {
                return None;
            }
            released.push(self.held.remove(0));
        }
        None
    }

    /// True if nothing is held back.
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// The text has ended, so what is held is text.
    pub(super) fn take(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(text: &str, markers: &[&str]) -> (String, Vec<usize>) {
        let (mut scan, mut released) = (Scan::default(), String::new());
        let found = text.chars().filter_map(|c| scan.feed(c, markers, &mut released)).collect();
        released.push_str(&scan.take());
        (released, found)
    }

    #[test]
    fn a_marker_is_found_after_a_false_start_of_itself() {
        assert_eq!(run("a<<b>c<b<b>", &["<b>"]), ("a<c<b".to_owned(), vec![0, 0]));
        assert_eq!(run("xaab", &["aab", "ac"]), ("x".to_owned(), vec![0]));
        assert_eq!(run("aaab", &["aab"]), ("a".to_owned(), vec![0]));
    }

    #[test]
    fn what_never_completes_is_text() {
        assert_eq!(run("1 < 2 </thin", &["</think>"]), ("1 < 2 </thin".to_owned(), vec![]));
    }
}
