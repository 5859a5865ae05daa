//! The block of `penstock known-hosts --stanza` where its program is gone: ssh, scp and sftp reach nothing.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Output;

use testing::server::run_to_end;
use testing::sshd::Sshd;
use testing::user::{User, nothing_was_sent, place};
use testing::{secs, tools};

/// A program of our own that can be taken away, at a path with marks in it, and the block that names it.
struct Installed {
    user: User,
    program: PathBuf,
    stanza: String,
}

impl Installed {
    fn new() -> Self {
        let user = User::new();
        let program = user.home.path().join("it's 100% ours/penstock");
        fs::create_dir(program.parent().unwrap()).unwrap();
        fs::copy(testing::binary(), &program).unwrap();
        let made = run_to_end(user.command(&program).args(["known-hosts", "--stanza"]), secs(20));
        assert!(made.status.success(), "{made:?}");
        let stanza = String::from_utf8(made.stdout).unwrap();
        Self { user, program, stanza }
    }

    /// Runs ssh, scp or sftp with the configuration of this user.
    fn runs(&self, program: &str, arguments: &[&str]) -> Output {
        let config = self.user.home.path().join(".ssh/config");
        run_to_end(self.user.command(tools::program(program)).arg("-F").arg(config).args(arguments), secs(20))
    }
}

const LAX: [&str; 6] = [
    "-o",
    "StrictHostKeyChecking=no",
    "-o",
    "UserKnownHostsFile=/dev/null",
    "-o",
    "GlobalKnownHostsFile=/dev/null",
];

#[test]
fn ssh_refuses_every_host_where_the_program_is_gone_also_with_lax_settings_before_the_block() {
    let (installed, web1) = (Installed::new(), Sshd::start());
    installed.user.pin("web1", &web1.host_key(), None);
    let (here, batch) = (installed.user.home.path().join("got"), installed.user.home.path().join("batch"));
    fs::write(&batch, format!("get /etc/hostname {}\n", here.display())).unwrap();
    let (here, batch) = (here.display().to_string(), batch.display().to_string());
    let ways: [(&str, Vec<&str>); 3] = [
        ("ssh", vec!["web1", "echo", "here"]),
        ("scp", vec!["web1:/etc/hostname", &here]),
        ("sftp", vec!["-b", &batch, "web1"]),
    ];
    let lax = "Host *\n    StrictHostKeyChecking no\n    UserKnownHostsFile /dev/null\n";
    for before in ["", lax] {
        installed.user.configure(&format!("{before}{}{}", place("web1", &web1), installed.stanza));
        for (program, arguments) in &ways {
            let reached = installed.runs(program, arguments);
            assert!(reached.status.success(), "{program}: {reached:?}");
        }
    }
    let web1 = Sshd::start();
    let kept = installed.program.with_extension("kept");
    fs::rename(&installed.program, &kept).unwrap();
    for before in ["", lax] {
        for times in [1, 2] {
            let stanza = installed.stanza.repeat(times);
            installed.user.configure(&format!("{before}{}{stanza}", place("web1", &web1)));
            for (program, arguments) in &ways {
                for options in [&[][..], &LAX] {
                    let refused = installed.runs(program, &[options, arguments].concat());
                    let said = String::from_utf8_lossy(&refused.stderr);
                    assert!(!refused.status.success(), "{program} {options:?} {before:?}: {refused:?}");
                    assert!(said.contains("ours/penstock is missing, so no host is accepted"), "{said}");
                    assert!(said.contains("KnownHostsCommand failed"), "{said}");
                }
            }
        }
    }
    nothing_was_sent(&web1);
    // A program that cannot be started is refused like one that is gone.
    fs::rename(&kept, &installed.program).unwrap();
    for (content, mode) in [("", 0o755), ("", 0o644), ("no program", 0o755), ("no program", 0o644)] {
        fs::write(&installed.program, content).unwrap();
        fs::set_permissions(&installed.program, fs::Permissions::from_mode(mode)).unwrap();
        let refused = installed.runs("ssh", &[&LAX[..], &["web1", "echo", "here"]].concat());
        let ended = (refused.status.code(), refused.stdout.as_slice());
        assert_eq!(ended, (Some(255), &b""[..]), "{content:?} {mode:o}: {refused:?}");
    }
    nothing_was_sent(&web1);
}

#[test]
fn alias_that_looks_like_an_option_of_the_program_opens_nothing() {
    let (installed, web1) = (Installed::new(), Sshd::start());
    installed.user.configure(&format!("{}{}", place("web1", &web1), installed.stanza));
    // Each of these would make the program end well without an answer, and a lax ssh takes that for a key of a new host.
    for alias in ["-h", "--help", "--stanza"] {
        let alias = format!("HostKeyAlias={alias}");
        let arguments = [&LAX[..], &["-o", &alias, "web1", "echo", "here"]].concat();
        let refused = installed.runs("ssh", &arguments);
        let ended = (refused.status.code(), refused.stdout.as_slice());
        assert_eq!(ended, (Some(255), &b""[..]), "{alias}: {refused:?}");
        assert!(String::from_utf8_lossy(&refused.stderr).contains("KnownHostsCommand failed"), "{refused:?}");
    }
    nothing_was_sent(&web1);
}

#[test]
fn audit_finds_a_block_whose_program_is_gone_and_one_that_ssh_would_skip() {
    let installed = Installed::new();
    let user = &installed.user;
    let audit = || {
        let output = user.penstock(&["host", "audit"]);
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    user.configure(&installed.stanza);
    assert_eq!(audit(), (Some(0), "0 hosts, 0 findings, 0 bad\n".to_owned()));
    // As it was made before a shell started the program.
    let direct = format!(
        "Host *\n    KnownHostsCommand {} known-hosts --port %p %k %H %I %t %K\n",
        installed
            .stanza
            .split_once("' '")
            .map(|(_, rest)| format!("'{}", rest.split_once(" --port").unwrap().0))
            .unwrap()
    );
    user.pin(
        "web1",
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcH",
        None,
    );
    user.configure(&direct);
    let (code, said) = audit();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("continues without it if that program is missing; put the block of"), "{said}");
    // Who makes the block anew is told that the old one still wins.
    let again = run_to_end(user.command(&installed.program).args(["known-hosts", "--stanza"]), secs(20));
    assert!(String::from_utf8_lossy(&again.stderr).contains("put the block at the top"), "{again:?}");

    fs::remove_file(&installed.program).unwrap();
    for (block, then) in
        [(&installed.stanza, "ssh refuses every host"), (&direct, "may go on without asking")]
    {
        user.configure(block);
        let (code, said) = audit();
        assert_eq!(code, Some(1), "{said}");
        let line = said.lines().find(|line| line.starts_with("bad")).unwrap_or_default();
        assert!(line.contains("ours/penstock, which cannot be started (No such file"), "{said}");
        assert!(line.contains("config:") && line.contains(then), "{said}");
    }
    fs::write(&installed.program, "").unwrap();
    fs::set_permissions(&installed.program, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(audit().1.contains("which is not a program that can be started"), "{}", audit().1);
    // Without any host, too.
    fs::remove_dir_all(user.store().places().hosts()).unwrap();
    assert_eq!(audit().0, Some(1));
}

#[test]
fn block_is_not_made_for_a_program_that_could_not_be_started_by_it() {
    let user = User::new();
    let program = user.home.path().join("a\nb/penstock");
    fs::create_dir(program.parent().unwrap()).unwrap();
    fs::copy(testing::binary(), &program).unwrap();
    let refused = run_to_end(user.command(&program).args(["known-hosts", "--stanza"]), secs(20));
    assert_eq!((refused.status.code(), refused.stdout.as_slice()), (Some(1), &b""[..]), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("special characters"), "{refused:?}");
}
