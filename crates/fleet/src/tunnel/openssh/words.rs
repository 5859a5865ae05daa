//! Derives the reason of a failure from the log of `ssh`.

use hosts::fleet::ending::{Failure, Phase, Reason};

use super::super::engine::failure;

/// ssh tells its failures apart only by the text of its log, `words`. `beside` is its standard error, which may come
/// from the host, a jump host or a `ProxyCommand`: it is quoted only if the log gives no reason, and as text of unknown
/// origin.
pub(super) fn why(host: &str, status: Option<i32>, words: &str, beside: &str) -> Failure {
    let last = words.rsplit("; ").next().unwrap_or_default().trim_start_matches(": ");
    let known = KNOWN.iter().find(|(text, ..)| words.contains(text));
    let (reason, detail, advice) = match known {
        Some((_, reason, what, advice)) => (*reason, format!("{host} {what} (ssh: {last})"), *advice),
        None => {
            let how = match status {
                Some(code) => format!("ended with status {code}"),
                None => "was ended by a signal".to_owned(),
            };
            let beside = match beside {
                "" => String::new(),
                beside => format!("; on its standard error{beside}"),
            };
            (Reason::ConnectionLost, format!("ssh to {host} {how}{words}{beside}"), None)
        }
    };
    failure(Phase::Connect, reason, detail, advice)
}

type Known = (&'static str, Reason, &'static str, Option<&'static str>);

const KNOWN: [Known; 10] = [
    (
        "has changed and you have requested",
        Reason::KeyChanged,
        "showed a different key than the known one; nothing was sent",
        None,
    ),
    (
        "Host key verification failed",
        Reason::UnknownHost,
        "showed a key that ssh does not know for it; nothing was sent",
        None,
    ),
    (
        "Permission denied",
        Reason::PermissionDenied,
        "accepts none of the keys",
        Some("`ssh -v` to it shows what was offered"),
    ),
    ("Could not resolve", Reason::NoAddress, "has no address", None),
    ("Connection refused", Reason::ConnectionRefused, "refuses the connection", None),
    ("No route to host", Reason::Unreachable, "cannot be reached", None),
    ("Network is unreachable", Reason::Unreachable, "cannot be reached", None),
    ("timed out", Reason::TimedOut, "does not answer", None),
    (
        "remote port forwarding failed",
        Reason::ChannelRefused,
        "refused to listen for the remote forward",
        None,
    ),
    (
        "Bad configuration",
        Reason::BadConfiguration,
        "cannot be tried: the configuration of ssh is wrong",
        None,
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ssh_says_becomes_a_reason_with_the_point_first() {
        let words = ": remove with:; Host key for [127.0.0.1]:2 has changed and you have requested strict \
                     checking.; Host key verification failed.";
        let changed = why("nas", Some(255), words, "");
        assert_eq!(changed.reason, Reason::KeyChanged);
        assert!(
            changed.detail.starts_with("nas showed a different key than the known one"),
            "{}",
            changed.detail
        );
        let denied =
            why("nas", Some(255), ": root@nas: Permission denied (publickey).", ": Connection refused");
        assert_eq!((denied.reason, denied.advice.is_some()), (Reason::PermissionDenied, true));
        assert_eq!(why("nas", None, "", "").detail, "ssh to nas was ended by a signal");
        // The banner of a host can contain the same text.
        let forged = why("nas", Some(255), ": Connection closed", ": Host key verification failed.");
        assert_eq!(forged.reason, Reason::ConnectionLost);
        assert_eq!(
            forged.detail,
            "ssh to nas ended with status 255: Connection closed; on its standard error: Host key verification failed."
        );
    }
}
