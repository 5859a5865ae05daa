//! `penstock known-hosts` with wrong input: files, keys and arguments. It never prints a line then, and ssh never goes on.

use std::fs;
use std::process::Command;

use testing::sshd::{Sshd, keygen, public_line};
use testing::tools;
use testing::user::{User, nothing_was_sent, place};

/// Plain ssh in a lax configuration, with our block.
fn lax_ssh(user: &User, sshd: &Sshd) -> (bool, String) {
    let lax = "Host *\n    StrictHostKeyChecking no\n    UserKnownHostsFile /dev/null\n";
    user.configure(&format!("{lax}{}{}", place("web1", sshd), user.said(&["known-hosts", "--stanza"])));
    let mut ssh = user.command(tools::program("ssh"));
    ssh.arg("-F").arg(user.home.path().join(".ssh/config")).args(["web1", "echo", "here"]);
    let output = testing::server::run_to_end(&mut ssh, testing::secs(20));
    let reached = output.status.success() || output.stdout == b"here\n";
    (reached, String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn list_of_revoked_keys_that_cannot_be_read_refuses_every_host_and_says_why() {
    let (user, web1) = (User::new(), Sshd::start());
    let key = web1.host_key();
    user.pin("web1", &key, None);
    assert!(lax_ssh(&user, &web1).0);
    let web1 = Sshd::in_directory(same_keys(&web1), "");
    let list = user.store().places().revoked();
    let (kind, blob) = key.split_once(' ').unwrap();
    let make: [(&str, &dyn Fn()); 9] = [
        ("line 3: ", &|| fs::write(&list, format!("# keys\n\n@revoked * {key}\n")).unwrap()),
        ("line 1: ", &|| fs::write(&list, &key[..40]).unwrap()),
        ("not UTF-8", &|| fs::write(&list, b"\xff\xfe\n").unwrap()),
        ("longer than", &|| fs::File::create(&list).unwrap().set_len(1 << 40).unwrap()),
        ("not a regular file", &|| {
            nix::unistd::mkfifo(&list, nix::sys::stat::Mode::S_IRWXU).unwrap();
        }),
        ("not a regular file", &|| fs::create_dir(&list).unwrap()),
        ("No such file", &|| std::os::unix::fs::symlink("/nonexistent/list", &list).unwrap()),
        ("can be written by others", &|| {
            use std::os::unix::fs::PermissionsExt as _;
            fs::write(&list, "").unwrap();
            fs::set_permissions(&list, fs::Permissions::from_mode(0o666)).unwrap();
        }),
        ("belongs to user 12345", &|| {
            fs::write(&list, "").unwrap();
            // Who is not root cannot give a file away, and has seen the other cases.
            if nix::unistd::geteuid().is_root() {
                std::os::unix::fs::chown(&list, Some(12345), None).unwrap();
            } else {
                fs::write(&list, "belongs to user 12345").unwrap();
            }
        }),
    ];
    for (words, make) in make {
        make();
        for arguments in [
            &["known-hosts", "web1"][..],
            &["known-hosts", "--port", "22", "web1", "web1", "ORDER", "NONE", "NONE"],
            &["known-hosts", "--port", "22", "web1", "web1", "HOSTNAME", kind, blob],
            &["host", "why", "web1", "--key", &key],
            &["run", "-w", "web1", "echo", "here"],
        ] {
            let output = user.penstock(arguments);
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(
                !output.status.success() && output.stdout.is_empty(),
                "{words} {arguments:?}: {output:?}"
            );
            let told = said.contains(words) || !nix::unistd::geteuid().is_root() && said.contains("line 1");
            assert!(told && said.contains(&list.display().to_string()), "{words} {arguments:?}: {said}");
        }
        let (reached, said) = lax_ssh(&user, &web1);
        assert!(!reached && said.contains("KnownHostsCommand failed"), "{words}: {said}");
        let _ = fs::remove_dir(&list).or_else(|_| fs::remove_file(&list));
    }
    nothing_was_sent(&web1);
    assert!(lax_ssh(&user, &web1).0);
}

/// A directory with the keys of a server.
fn same_keys(sshd: &Sshd) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for file in ["host", "host.pub", "client", "client.pub"] {
        fs::copy(sshd.directory.path().join(file), directory.path().join(file)).unwrap();
    }
    directory
}

#[test]
fn odd_arguments_get_no_line() {
    let user = User::new();
    let keys = tempfile::tempdir().unwrap();
    keygen(&keys.path().join("k"), &["-t", "ed25519"]);
    let key = public_line(&keys.path().join("k.pub"));
    user.pin("web1", &key, None);
    let (kind, blob) = key.split_once(' ').unwrap();
    let long = "A".repeat(100_000);
    let certificate = "ssh-ed25519-cert-v01@openssh.com";
    let printed = |arguments: &[&str]| {
        let output = user.penstock(&[&["known-hosts"][..], arguments].concat());
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    assert_eq!(printed(&["web1", "p", "HOSTNAME", kind, blob]), (Some(0), format!("p {key}\n")));
    assert_eq!(printed(&["web1", "p", "ADDRESS", kind, blob]), (Some(0), format!("p {key}\n")));
    for arguments in [
        &["web1\nweb1", "p", "HOSTNAME", kind, blob][..],
        &["web1", "p\n* ssh-ed25519 AAAA", "HOSTNAME", kind, blob],
        &["web1", "p q", "HOSTNAME", kind, blob],
        &["../web1", "p", "HOSTNAME", kind, blob],
        &["web1", "p", "HOSTNAME"],
        &["web1", "p", "HOSTNAME", kind],
        &["web1", "p", "HOSTNAME", "NONE", "NONE"],
        &["web1", "p", "HOSTNAME", "ssh-rsa", blob],
        &["web1", "p", "HOSTNAME", certificate, blob],
        &["web1", "p", "HOSTNAME", kind, &blob[..blob.len() - 4]],
        &["web1", "p", "HOSTNAME", kind, &long],
        &["web1", "p", "HOSTNAME", kind, ""],
        &["web1", "p", "HOSTNAME", &format!("{kind} {blob}\n{kind}"), blob],
        &["web1", "p", "hostname", kind, blob],
        &["web1", "p", "", kind, blob],
        &["web1", "p", "RENEWAL", kind, blob],
        &["web1", "HOSTNAME", kind, blob],
        &["", "p", "HOSTNAME", kind, blob],
        &["--port", "0", "web1", "p", "HOSTNAME", kind, blob],
        &["--port", "70000", "web1", "p", "HOSTNAME", kind, blob],
    ] {
        let (code, out) = printed(arguments);
        assert!(code != Some(0) && out.is_empty(), "{arguments:?}: {code:?} {out}");
    }
}

#[test]
fn certificate_that_is_longer_than_an_argument_can_be_is_refused() {
    let user = User::new();
    let directory = tempfile::tempdir().unwrap();
    let host = directory.path().join("host");
    for name in ["host", "ca"] {
        keygen(&directory.path().join(name), &["-t", "ed25519"]);
    }
    user.pin("web1", &public_line(&host.with_extension("pub")), None);
    let ca = public_line(&directory.path().join("ca.pub"));
    user.said(&["host", "add", "web1", "--ca", &ca, "--principals", "web1"]);
    // 128 KiB are the limit of the kernel (MAX_ARG_STRLEN); base64 makes a third more of it.
    let id = "x".repeat(110_000);
    let signed = Command::new(tools::program("ssh-keygen"))
        .args(["-q", "-h", "-n", "web1", "-I", &id, "-s"])
        .arg(directory.path().join("ca"))
        .arg(host.with_extension("pub"))
        .output()
        .unwrap();
    assert!(signed.status.success(), "{signed:?}");
    let line = format!("HostCertificate {}-cert.pub", host.display());
    let web1 = Sshd::in_directory(directory, &line);
    let (reached, said) = lax_ssh(&user, &web1);
    assert!(!reached, "{said}");
    let run = user.penstock(&["run", "-w", "web1", "echo", "here"]);
    assert!(!run.status.success() && !String::from_utf8_lossy(&run.stdout).contains("here\n"), "{run:?}");
    nothing_was_sent(&web1);
}
