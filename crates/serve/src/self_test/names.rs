//! Looks names up as every program of this machine does.

use std::net::ToSocketAddrs;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Time limit of all look-ups together.
const PATIENCE: Duration = Duration::from_secs(5);

/// Most names that are looked up at the same time.
const MOST: usize = 64;

/// Each name with why it does not resolve, or `None` if it does. Names beyond [`MOST`] are left out.
pub(super) fn look_up(mut names: Vec<String>) -> Vec<(String, Option<String>)> {
    names.sort_unstable();
    names.dedup();
    names.truncate(MOST);
    let (answers, answered) = mpsc::channel();
    for (at, name) in names.iter().enumerate() {
        let (name, answers) = (name.clone(), answers.clone());
        // A look-up cannot be ended: one that takes longer ends with this process.
        thread::spawn(move || {
            let why = (name.as_str(), 0).to_socket_addrs().err().map(|error| error.to_string());
            let _ = answers.send((at, why));
        });
    }
    drop(answers);
    let late = format!("no answer within {} s", PATIENCE.as_secs());
    let mut found: Vec<_> = names.into_iter().map(|name| (name, Some(late.clone()))).collect();
    let until = Instant::now() + PATIENCE;
    while let Ok((at, why)) = answered.recv_timeout(until.saturating_duration_since(Instant::now())) {
        found[at].1 = why;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_once_with_why_they_do_not_resolve() {
        let found = look_up(vec!["localhost".into(), "none.invalid".into(), "localhost".into()]);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0], ("localhost".to_owned(), None));
        assert!(found[1].0 == "none.invalid" && found[1].1.is_some(), "{found:?}");
    }
}
