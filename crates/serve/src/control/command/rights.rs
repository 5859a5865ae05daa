//! Which commands a client needs which rights for.

use logic::control_access::Rights;

use crate::control::client::PeerCredentials;

/// Commands that change nothing and show no line of the configuration.
const READ: [&str; 11] = [
    "status", "backends", "certs", "clients", "sessions", "health", "events", "why", "dsr", "history", "help",
];

/// A command that is not in the list needs the right to change.
pub(super) fn needed(command: &str, arguments: &[&str]) -> Rights {
    // With a number it shows lines of the configuration, which may have secrets.
    let shows_lines = command == "history" && !arguments.is_empty();
    // It shows what clients send.
    let shows_bytes = command == "dsr" && arguments.first() == Some(&"trace");
    if READ.contains(&command) && !shows_lines && !shows_bytes { Rights::Read } else { Rights::Change }
}

pub(super) fn refusal(who: &PeerCredentials, command: &str) -> String {
    format!("{who} may only read: `{command}` is for those whom control.operators names")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_of_the_list_exists_and_the_others_are_for_operators() {
        let names: Vec<_> = super::super::names().collect();
        assert!(READ.iter().all(|name| names.contains(name)));
        assert_eq!(needed("history", &[]), Rights::Read);
        assert_eq!(needed("history", &["3"]), Rights::Change);
        assert_eq!((needed("dsr", &["status"]), needed("dsr", &["trace"])), (Rights::Read, Rights::Change));
        for name in ["show", "diff", "save", "set", "drain", "reload", "stop", "unknown"] {
            assert_eq!(needed(name, &[]), Rights::Change, "{name}");
        }
    }
}
