//! Error messages with all their causes.

/// Joins the messages of an error and of all its sources: many errors do not name their source.
pub(crate) fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut inner = error.source();
    while let Some(cause) = inner {
        let words = cause.to_string();
        if !text.contains(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        inner = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot listen")]
    struct Outer(#[source] io::Error);

    #[test]
    fn each_cause_is_told_once() {
        assert_eq!(causes(&Outer(io::Error::other("the name is taken"))), "cannot listen: the name is taken");
        assert_eq!(causes(&Outer(io::Error::other("listen"))), "cannot listen");
    }
}
