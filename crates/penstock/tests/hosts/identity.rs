//! Who a host is, against real OpenSSH: our client and `ssh` with KnownHostsCommand come to the same verdict, and the wrong
//! host gets nothing.

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use hosts::fleet::ending::Reason;
use hosts::ssh::key::PublicKey;
use ssh::identity::Identities;
use testing::sshd::{Sshd, keygen, public_line};
use testing::tools;
use testing::user::{User, connect, connect_and_hear, ip, moved, nothing_was_sent, place};

#[test]
fn changed_address_connects_with_one_line_and_is_recorded_once() {
    let (user, web1) = (User::new(), Sshd::start());
    let old: IpAddr = "127.9.9.9".parse().unwrap();
    user.pin("web1", &web1.host_key(), Some(old));
    let identities = user.identities();
    let note = connect(&identities, "web1", &web1).unwrap();
    assert_eq!(note, Some(format!("web1 moved {old} -> {}, same key", web1.address)));
    let flushed = identities.flush();
    assert_eq!(flushed.written, ["web1".parse().unwrap()]);
    let text = fs::read_to_string(user.file("web1")).unwrap();
    assert!(text.contains(&format!("addr    {}\n", web1.address)), "{text}");
    assert!(text.contains(&format!("seen    {old} → {} ", web1.address)), "{text}");

    let before = fs::metadata(user.file("web1")).unwrap().ino();
    let seen = user.store().places().state.join("identity/seen");
    let seen_before = fs::metadata(&seen).unwrap().ino();
    let identities = user.identities();
    assert_eq!(connect(&identities, "web1", &web1).unwrap(), None);
    assert!(identities.flush().written.is_empty());
    let after = (fs::metadata(user.file("web1")).unwrap().ino(), fs::metadata(&seen).unwrap().ino());
    assert_eq!((before, seen_before), after, "an ordinary run writes nothing");

    let again = moved(&web1);
    assert!(user.ssh("web1", &again).status.success(), "plain ssh follows the name too");
}

#[test]
fn swapped_host_is_named_gets_nothing_and_the_others_go_on() {
    let (user, web1, db2, web3) = (User::new(), Sshd::start(), Sshd::start(), Sshd::start());
    user.pin("web1", &web1.host_key(), Some(ip(&web1)));
    user.pin("db2", &db2.host_key(), Some(ip(&db2)));
    user.pin("web3", &web3.host_key(), None);
    let identities = user.identities();
    let failure = connect(&identities, "web1", &db2).unwrap_err();
    assert_eq!(
        (failure.reason, failure.detail.as_str()),
        (Reason::WrongHost, "it showed the key of db2, not of web1; nothing was sent")
    );
    let advice =
        format!("{} now belongs to db2; if web1 moved: penstock host move web1 ADDRESS", db2.address);
    assert_eq!(failure.advice, Some(advice.clone()));
    nothing_was_sent(&db2);
    assert_eq!(connect(&identities, "web3", &web3).unwrap(), None, "the others go on");

    let output = user.ssh("web1", &db2);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(255), "{said}");
    assert!(said.contains("penstock: it showed the key of db2, not of web1; nothing was sent\n"), "{said}");
    nothing_was_sent(&db2);
    assert!(user.ssh("db2", &db2).status.success());
    assert_eq!(db2.logged("Accepted publickey", 1), 1, "the log would have shown it: {}", db2.log());
}

#[test]
fn replaced_key_is_refused_with_old_and_new_and_how_many_others_changed() {
    let (user, web1, web2) = (User::new(), Sshd::start(), Sshd::start());
    let old = tempfile::tempdir().unwrap();
    for name in ["web1", "web2"] {
        keygen(&old.path().join(name), &["-t", "ed25519"]);
        user.pin(name, &public_line(&old.path().join(format!("{name}.pub"))), None);
    }
    let print = |key: &str| key.parse::<PublicKey>().unwrap().fingerprint().to_string();
    let expected = |name: &str, sshd: &Sshd, others: &str| {
        let was = print(&public_line(&old.path().join(format!("{name}.pub"))));
        let is = print(&sshd.host_key());
        format!(
            "{name} showed ssh-ed25519 {is}, but ssh-ed25519 {was} is pinned (from=console 2026-03-01, not seen since)\
             {others}; nothing was sent"
        )
    };
    let identities = Arc::new(Identities::load(user.store()).unwrap().in_run());
    let first = connect(&identities, "web1", &web1).unwrap_err();
    assert_eq!(
        (first.reason, first.detail),
        (Reason::KeyChanged, expected("web1", &web1, "; no other host changed its key in this run"))
    );
    let second = connect(&identities, "web2", &web2).unwrap_err();
    assert_eq!(second.detail, expected("web2", &web2, "; 1 other host changed its key in this run"));
    assert_eq!(identities.changed(), 2);
    nothing_was_sent(&web1);
    let output = user.ssh("web1", &web1);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(255), "{said}");
    assert!(said.contains(&expected("web1", &web1, "")), "one host is not a run: {said}");
    let said = connect(&user.identities(), "web1", &web1).unwrap_err().detail;
    assert_eq!(said, expected("web1", &web1, ""), "nor is a connection of something else");
    user.configure(&place("web1", &web1));
    let said = String::from_utf8(user.penstock(&["run", "-w", "web1", "true"]).stderr).unwrap();
    assert!(said.contains("; no other host changed its key in this run; nothing was sent"), "{said}");
    nothing_was_sent(&web1);
}

#[test]
fn host_that_was_refused_for_a_changed_key_is_in_the_audit_until_its_key_is_right() {
    for refused_by in ["run", "ssh"] {
        let (user, web1) = (User::new(), Sshd::start());
        let old = tempfile::tempdir().unwrap();
        keygen(&old.path().join("k"), &["-t", "ed25519"]);
        user.pin("web1", &public_line(&old.path().join("k.pub")), None);
        user.configure(&place("web1", &web1));
        assert!(!user.penstock(&["host", "audit"]).stdout.starts_with(b"bad"));
        match refused_by {
            "ssh" => assert!(!user.ssh("web1", &web1).status.success()),
            _ => assert_eq!(user.penstock(&["run", "-w", "web1", "true"]).status.code(), Some(4)),
        }
        let shown = web1.host_key().parse::<PublicKey>().unwrap().fingerprint().to_string();
        let audit = user.penstock(&["host", "audit"]);
        let said = String::from_utf8_lossy(&audit.stdout).into_owned();
        assert_eq!(audit.status.code(), Some(1), "{refused_by}: {said}");
        assert!(said.contains("it was refused on ") && said.contains(&shown), "{refused_by}: {said}");
        user.said(&["host", "add", "web1", "--replace", "--fingerprint", &shown]);
        let said = user.said(&["host", "audit"]);
        assert!(!said.contains("it was refused on "), "{said}");
        user.said(&["run", "-w", "web1", "true"]);
        let seen = fs::read_to_string(user.store().places().state.join("identity/seen")).unwrap();
        assert!(!seen.contains("refused="), "{seen}");
    }
}

#[test]
fn certificates_of_hosts_count_only_if_everything_about_them_is_right() {
    let user = User::new();
    let work = tempfile::tempdir().unwrap();
    keygen(&work.path().join("ca"), &["-t", "ed25519"]);
    let ca = public_line(&work.path().join("ca.pub"));
    let good = ["-h", "-n", "web1,web1.example.com"];
    let cases: [(&[&str], Option<&str>); 8] = [
        (&good, None),
        (&["-h", "-n", "db2"], Some("it is for db2, not for web1, web1.example.com")),
        (&["-n", "web1"], Some("it is for users, not for hosts")),
        (&["-h", "-n", "web1", "-V", "20200101:20200201"], Some("it expired on 2020-0")),
        (&["-h", "-n", "web1", "-O", "critical:strange"], Some("it has the critical option strange")),
        (&["-h"], None),
        (&["-h", "-n", "*"], Some("it is for *, not for web1, web1.example.com")),
        (&["-h", "-n", "WEB1"], Some("it is for WEB1, not for web1, web1.example.com")),
    ];
    user.said(&["host", "add", "web1", "--ca", &ca, "--principals", "web1,web1.example.com"]);
    for (options, expected) in cases {
        let web1 = certified(work.path(), options);
        let result = connect(&user.identities(), "web1", &web1);
        match expected {
            // Each certificate is of another server.
            None => assert!(result.is_ok(), "{options:?}: {result:?}"),
            Some(fault) => {
                let failure = result.unwrap_err();
                assert_eq!(failure.reason, Reason::KeyRefused, "{options:?}: {failure:?}");
                assert!(failure.detail.contains(fault), "{options:?}: {failure:?}");
                nothing_was_sent(&web1);
            }
        }
    }
    let bare = Sshd::start();
    let failure = connect(&user.identities(), "web1", &bare).unwrap_err();
    assert!(failure.detail.contains("a certificate of its authority is required"), "{failure:?}");
    let web1 = certified(work.path(), &good);
    assert!(user.ssh("web1", &web1).status.success(), "ssh takes the authority too");
    user.configure(&place("web1", &web1));
    let explained = user.said(&["ssh", "explain", "web1"]);
    let authority = ca.parse::<PublicKey>().unwrap().fingerprint();
    assert!(
        explained.contains(&format!("accepted: its certificate is signed by the authority {authority}")),
        "{explained}"
    );
}

/// A server with a certificate that `ca` in `work` made with these options.
fn certified(work: &Path, options: &[&str]) -> Sshd {
    let directory = tempfile::tempdir().unwrap();
    let host = directory.path().join("host");
    keygen(&host, &["-t", "ed25519"]);
    let signed = Command::new(tools::program("ssh-keygen"))
        .args(["-q", "-s"])
        .arg(work.join("ca"))
        .args(["-I", "made by a test"])
        .args(options)
        .arg(directory.path().join("host.pub"))
        .output()
        .unwrap();
    assert!(signed.status.success(), "{signed:?}");
    let line = format!("HostCertificate {}-cert.pub", host.display());
    Sshd::in_directory(directory, &line)
}

#[test]
fn damaged_file_refuses_its_host_alone() {
    let (user, web1, web2) = (User::new(), Sshd::start(), Sshd::start());
    user.pin("web1", &web1.host_key(), None);
    user.pin("web2", &web2.host_key(), None);
    let text = fs::read_to_string(user.file("web1")).unwrap();
    fs::write(user.file("web1"), &text[..60]).unwrap();
    let identities = user.identities();
    let failure = connect(&identities, "web1", &web1).unwrap_err();
    assert_eq!(failure.reason, Reason::BadConfiguration);
    let path = user.file("web1").display().to_string();
    assert!(
        failure.detail.starts_with(&format!("the identity of web1 cannot be read: {path}: line 2: ")),
        "{failure:?}"
    );
    nothing_was_sent(&web1);
    assert_eq!(connect(&identities, "web2", &web2).unwrap(), None);
    assert_eq!(user.said(&["known-hosts", "web1"]), "");
    assert!(
        user.refused(&["host", "show", "web1"])
            .contains("is damaged, and web1 is refused until it is repaired")
    );
}

#[test]
fn names_change_without_losing_the_host_and_revoked_keys_belong_to_no_host() {
    let (user, web1) = (User::new(), Sshd::start());
    user.pin("web1", &web1.host_key(), None);
    user.said(&["host", "alias", "web1", "www"]);
    user.said(&["host", "rename", "web1", "front"]);
    for name in ["web1", "www", "front"] {
        assert_eq!(connect(&user.identities(), name, &web1).unwrap(), None, "{name}");
        assert!(user.ssh(name, &web1).status.success(), "{name}");
    }
    let why = user.said(&["host", "why", "www", "--key", &web1.host_key()]);
    assert!(
        why.starts_with("identity  front (www is another name or a hint of it)\n")
            && why.contains("verdict   accepted\n"),
        "{why}"
    );
    user.said(&["host", "retire", "front"]);
    assert!(
        connect(&user.identities(), "front", &web1).unwrap_err().detail.contains("front is retired since ")
    );
    user.configure(&place("front", &web1));
    let run = user.penstock(&["run", "-w", "front", "true"]);
    assert_eq!(run.status.code(), Some(4), "no identity: {run:?}");
    assert!(
        String::from_utf8_lossy(&run.stdout).starts_with("front =: key-refused: front is retired"),
        "{run:?}"
    );
    user.said(&["host", "retire", "front", "--undo"]);
    let fingerprint = web1.host_key().parse::<PublicKey>().unwrap().fingerprint().to_string();
    user.said(&["host", "revoke", "front", &fingerprint]);
    let failure = connect(&user.identities(), "front", &web1).unwrap_err();
    assert!(failure.detail.starts_with("front showed the revoked key ssh-ed25519 "), "{failure:?}");
    assert!(connect(&user.identities(), "stranger", &web1).unwrap_err().detail.contains("the revoked key"));
    assert_eq!(user.ssh("front", &web1).status.code(), Some(255));
}

#[test]
fn new_key_that_the_host_proves_is_pinned_before_the_old_one_goes() {
    let user = User::new();
    let directory = tempfile::tempdir().unwrap();
    let next = directory.path().join("next");
    keygen(&next, &["-t", "ecdsa"]);
    let web1 = Sshd::in_directory(directory, &format!("HostKey {}", next.display()));
    user.pin("web1", &web1.host_key(), None);
    let identities = user.identities();
    connect_and_hear(&identities, "web1", &web1, 2);
    let flushed = identities.flush();
    assert!(flushed.failed.is_empty(), "{flushed:?}");
    let show = user.said(&["host", "show", "web1"]);
    let old = web1.host_key().parse::<PublicKey>().unwrap().fingerprint();
    let new = public_line(&next.with_extension("pub"));
    let line = show.lines().find(|line| line.contains(&new)).unwrap_or_else(|| panic!("{show}"));
    assert!(line.contains(&format!("from=rotation(proved by {old}) ")), "{line}");
    let seen = fs::read_to_string(user.store().places().state.join("identity/seen")).unwrap();
    assert!(seen.contains(" kex=") && seen.contains(" strict=yes"), "{seen}");
    // A server that has only the new key is the same host.
    let directory = tempfile::tempdir().unwrap();
    fs::copy(&next, directory.path().join("host")).unwrap();
    fs::copy(next.with_extension("pub"), directory.path().join("host.pub")).unwrap();
    let later = Sshd::in_directory(directory, "");
    connect(&user.identities(), "web1", &later).unwrap();
}
