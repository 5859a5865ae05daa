//! Where a host is: hints lead where nobody else says it, and a move is told once.
#![allow(clippy::unwrap_used)]

use support::sshd::Sshd;
use support::user::{Fleet, User, nothing_was_sent, place};

mod support;

#[test]
fn hints_lead_run_and_explain_where_ssh_config_says_nothing() {
    let (user, web1) = (User::new(), Sshd::start());
    user.pin("web1.invalid", &web1.host_key(), None);
    user.configure(&format!(
        "Host *\n    User {}\n    IdentityFile {}\n    IdentitiesOnly yes\n",
        web1.user,
        web1.client_key.display()
    ));
    let lost = user.penstock(&["run", "-w", "web1.invalid", "true"]);
    let said = String::from_utf8_lossy(&lost.stderr).into_owned();
    assert!(said.contains("penstock host move web1.invalid ADDRESS"), "{said}");
    let (address, port) = (web1.address.to_string(), web1.port.to_string());
    user.said(&["host", "add", "web1.invalid", "--address", "127.9.9.9", "--port", &port]);
    assert_eq!(
        user.said(&["host", "move", "web1.invalid", &address]),
        format!("web1.invalid is looked for at {address}\n")
    );
    assert!(user.said(&["run", "-w", "web1.invalid", "echo", "here"]).contains("here"));
    let explained = user.said(&["ssh", "explain", "web1.invalid"]);
    let connect = explained.lines().find(|line| line.starts_with("connect ")).unwrap();
    assert!(connect.contains(&format!("{address}:{port} in ")), "{explained}");
    assert!(explained.contains("asked what the server accepts: publickey"), "{explained}");
}

#[test]
fn where_ssh_config_names_the_place_move_and_the_advice_for_a_swap_say_its_line() {
    let fleet = Fleet::new();
    fleet.user.configure(&(place("web2", &fleet.db1) + &place("db1", &fleet.web2)));
    let line = format!("~/.ssh/config:2 says HostName {}: change it there", fleet.db1.address);
    let moved = fleet.user.said(&["host", "move", "web2", &fleet.web2.address.to_string()]);
    assert!(moved.contains(&line), "{moved}");
    let run = fleet.user.penstock(&["run", "-w", "web2", "true"]);
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(said.contains(&line) && said.contains("answered as db1, not web2"), "{said}");
    nothing_was_sent(&fleet.db1);
}

#[test]
fn host_that_moved_is_told_once_by_run_and_not_when_quiet() {
    for (flags, told) in [(&[][..], true), (&["--json"][..], true), (&["-q"][..], false)] {
        let (user, web1) = (User::new(), Sshd::start());
        user.pin("web1", &web1.host_key(), Some("127.9.9.9".parse().unwrap()));
        user.configure(&place("web1", &web1));
        let all = [&["run", "-w", "web1"][..], flags, &["true"][..]].concat();
        let output = user.penstock(&all);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let shown = String::from_utf8_lossy(&output.stdout).into_owned();
        let note = format!("web1 moved 127.9.9.9 -> {}, same key", web1.address);
        let event = format!("{{\"event\":\"note\",\"host\":\"web1\",\"text\":\"{note}\"}}\n");
        match flags {
            ["--json"] => assert!(shown.contains(&event), "{output:?}"),
            _ => assert_eq!(said.contains(&format!("{note}\n")), told, "{output:?}"),
        }
        assert!(!user.penstock(&all).stderr.windows(5).any(|some| some == b"moved"), "it is recorded");
    }
}
