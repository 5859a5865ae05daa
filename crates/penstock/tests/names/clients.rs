//! Programs of others use the records: ssh accepts a host, gpg finds a key.

use std::fs;

use testing::server::run_to_end;
use testing::sshd::Sshd;
use testing::tools::{Root, root};
use testing::{eventually, secs};

use crate::domain::{Domain, Home, Settings};
use crate::push::push;

#[test]
fn ssh_accepts_a_host_by_our_sshfp_record_alone() {
    if root("mounts a resolv.conf") == Root::LeftOut {
        return;
    }
    let sshd = Sshd::start();
    let records = format!("web1 A {}\nweb2 A {}\n", sshd.address, sshd.address);
    let domain = Domain::with(&Settings { records: &records, ..Settings::default() });
    let home = Home::new();
    home.said(&["host", "add", "web1.example.test", "--key", &sshd.host_key()]);
    home.said(&push(&domain, &["--host", "web1.example.test"], &["--ttl", "1"]));
    let (port, key) = (sshd.port.to_string(), sshd.client_key.display().to_string());
    let known = home.file("known_hosts");
    fs::write(&known, "").unwrap();
    let ssh = |host: &str, verify: &str| {
        let (known, verify) = (format!("UserKnownHostsFile={known}"), format!("VerifyHostKeyDNS={verify}"));
        let words = [
            "ssh",
            "-F",
            "none",
            "-p",
            &port,
            "-i",
            &key,
            "-o",
            &known,
            "-o",
            &verify,
            "-o",
            "StrictHostKeyChecking=yes",
            "-o",
            "GlobalKnownHostsFile=/dev/null",
            "-o",
            "BatchMode=yes",
            "-l",
            &sshd.user,
            host,
            "echo in",
        ];
        let mut command = domain.resolving(&words);
        home.settle(&mut command);
        run_to_end(&mut command, secs(60))
    };
    let good = eventually("the resolver has it", secs(20), || {
        let output = ssh("web1.example.test", "yes");
        (output.stdout == b"in\n").then_some(output)
    });
    assert!(good.status.success());
    for refused in [ssh("web1.example.test", "no"), ssh("web2.example.test", "yes")] {
        assert!(!refused.status.success(), "{refused:?}");
        assert!(
            String::from_utf8_lossy(&refused.stderr).contains("Host key verification failed"),
            "{refused:?}"
        );
    }
}

#[test]
fn gpg_finds_a_key_by_our_openpgpkey_and_cert_records() {
    if root("mounts a resolv.conf") == Root::LeftOut {
        return;
    }
    let domain = Domain::start();
    let owner = Home::new();
    let key = owner.openpgp(&["Alice <alice@example.test>"]);
    owner.said(&push(&domain, &["--openpgp", &key, "--cert"], &["--ttl", "1"]));
    for way in ["dane", "cert"] {
        let finder = Home::new();
        let gnupg = finder.path().join("gnupg");
        fs::create_dir(&gnupg).unwrap();
        fs::set_permissions(&gnupg, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        // dirmngr asks the resolver of the system itself.
        fs::write(gnupg.join("dirmngr.conf"), "standard-resolver\n").unwrap();
        let words = [
            "gpg",
            "--batch",
            "--no-autostart",
            "--auto-key-locate",
            &format!("clear,{way}"),
            "--locate-keys",
            "alice@example.test",
        ];
        let words: Vec<&str> = words.into_iter().filter(|word| *word != "--no-autostart").collect();
        eventually("gpg finds it", secs(40), || {
            let mut command = domain.resolving(&words);
            finder.settle(&mut command);
            let output = run_to_end(&mut command, secs(60));
            output.status.success().then_some(())
        });
        let listed = finder.run(&["gpg", "--batch", "--with-colons", "--list-keys"]);
        assert!(listed.contains("Alice <alice@example.test>") && listed.contains("sub:"), "{way}: {listed}");
    }
}
