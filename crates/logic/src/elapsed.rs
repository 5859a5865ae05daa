//! For how long something has been as it is, in words for people. Used by `crates/serve/src/report/text.rs`,
//! `crates/penstock/src/cmd/tunnel/table.rs` and `crates/penstock/src/demo/table.rs`, each with units of its own.

use std::time::Duration;

/// What `said` makes of the time; `just now` below a second: "0 s" tells a person nothing.
#[must_use]
pub fn or_just_now(elapsed: Duration, said: impl FnOnce() -> String) -> String {
    if elapsed < Duration::from_secs(1) { "just now".to_owned() } else { said() }
}

/// `for 3 s`, in a sentence; `since just now` below a second.
#[must_use]
pub fn lasting(elapsed: Duration, said: impl FnOnce() -> String) -> String {
    let how = if elapsed < Duration::from_secs(1) { "since" } else { "for" };
    format!("{how} {}", or_just_now(elapsed, said))
}

/// The same with ` ago`, but for `just now`.
#[must_use]
pub fn ago(elapsed: Duration, said: impl FnOnce() -> String) -> String {
    or_just_now(elapsed, || format!("{} ago", said()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_person_is_told_of_zero_seconds() {
        let all = |millis| {
            let (elapsed, said) = (Duration::from_millis(millis), || format!("{} s", millis / 1000));
            [or_just_now(elapsed, said), lasting(elapsed, said), ago(elapsed, said)]
        };
        for short in [0, 400, 999] {
            assert_eq!(all(short), ["just now", "since just now", "just now"]);
        }
        assert_eq!(all(1000), ["1 s", "for 1 s", "1 s ago"]);
    }
}
