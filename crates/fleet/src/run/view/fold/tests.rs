use super::*;
use hosts::fleet::ending::{Failure, Phase, Reason};

/// The folded output of hosts; each host has a name, standard output, standard error and an exit status.
fn shown(masks: &str, how: Shown, hosts: &[(&str, &str, &str, u32)]) -> String {
    let called = hosts.iter().map(|(name, ..)| Called { name: (*name).to_owned(), also: None }).collect();
    let mut view = Folded::new(called, masks.parse().unwrap(), how, Colour::Off);
    let mut out = Vec::new();
    for (host, (_, said, wrong, code)) in hosts.iter().enumerate() {
        // The two streams come in pieces of 3 bytes.
        for piece in wrong.as_bytes().chunks(3) {
            view.output(host, Stream::Stderr, piece, &mut out).unwrap();
        }
        for piece in said.as_bytes().chunks(2) {
            view.output(host, Stream::Stdout, piece, &mut out).unwrap();
        }
        let ending = match code {
            999 => Ending::Failed(Failure {
                phase: Phase::Connect,
                reason: Reason::ConnectionRefused,
                detail: String::new(),
                advice: None,
                remote: Remote::NotStarted,
            }),
            code => Ending::Exited(*code),
        };
        view.ended(host, &ending, Duration::ZERO, &mut out).unwrap();
    }
    assert!(out.is_empty(), "groups are known at the end");
    view.finish(&mut out).unwrap();
    String::from_utf8(out).unwrap().replace(&format!("{RULE}\n"), "--\n")
}

#[test]
fn equal_outputs_are_shown_once_the_largest_group_first_with_streams_and_endings_told_apart() {
    let hosts = [
        ("db1", "", "no\n", 1),
        ("web3", "5.10\n", "", 0),
        ("web1", "6.1\n=> x\n", "", 0),
        ("web2", "6.1\n=> x\n", "", 0),
        ("web4", "6.1\n=> x\n", "", 2),
        ("web5", "", "", 0),
        ("away", "", "", 999),
    ];
    assert_eq!(
        shown("", Shown::Complete, &hosts),
        "--\nweb[1-2] (2)\n--\n6.1\n-> => x\n--\naway (1)\n--\n=: connection-refused\n--\ndb1 (1)\n--\n=> no\n=: exit 1\n\
         --\nweb3 (1)\n--\n5.10\n--\nweb4 (1)\n--\n6.1\n-> => x\n=: exit 2\n--\nweb5 (1): no output\n--\n"
    );
}

#[test]
fn what_is_masked_makes_no_difference_and_is_shown_masked_unless_the_host_is_alone() {
    let hosts = [("web1", "I am web1\n10.0.0.1\n", "", 0), ("web2", "I am web2\n10.0.0.2\n", "", 0)];
    assert_eq!(shown("host,ip", Shown::Complete, &hosts), "--\nweb[1-2] (2)\n--\nI am <host>\n<ip>\n");
    assert_eq!(
        shown("", Shown::Complete, &hosts),
        "--\nweb1 (1)\n--\nI am web1\n10.0.0.1\n--\nweb2 (1)\n--\nI am web2\n10.0.0.2\n"
    );
}

#[test]
fn difference_is_against_the_majority_of_those_that_ran() {
    let hosts = [
        ("a1", "", "", 999),
        ("a2", "", "", 999),
        ("a3", "", "", 999),
        ("h1", "1\n2\n3\n", "", 0),
        ("h2", "1\n2\n3\n", "", 0),
        ("h3", "1\nx\n3\n", "oh\n", 4),
    ];
    assert_eq!(
        shown("", Shown::Difference, &hosts),
        "--\nh[1-2] (2)\n--\n1\n2\n3\n--\na[1-3] (3)\n--\n=: connection-refused\n\
         --\nh3 (1): the difference\n--\n@@ -1,3 +1,5 @@\n 1\n-2\n+x\n 3\n+=> oh\n+=: exit 4\n"
    );
}

#[test]
fn escapes_of_a_terminal_and_lines_without_an_end_come_out_harmless() {
    let text = shown("", Shown::Complete, &[("h", "\x1b[2Jred\nhalf", "", 0)]);
    assert_eq!(text, "--\nh (1)\n--\n␛[2Jred\nhalf\n");
}
