//! The records are those that other programs make of the same keys.

use std::fs;

use testing::pki::{Pki, Time, self_signed};
use testing::sshd::keygen;

use crate::domain::Home;

#[test]
fn sshfp_lines_are_those_of_ssh_keygen() {
    let home = Home::new();
    let mut wanted = Vec::new();
    for (kind, more) in [("ed25519", &[][..]), ("ecdsa", &["-b", "384"]), ("rsa", &["-b", "3072"])] {
        let file = home.file(kind);
        keygen(file.as_ref(), &[&["-t", kind], more].concat());
        let public = format!("{file}.pub");
        home.said(&["host", "add", "web1.example.test", "--key", &public]);
        let lines = home.run(&["ssh-keygen", "-r", "web1.example.test.", "-f", &public]);
        wanted.extend(lines.lines().filter(|line| line.contains(" 2 ")).map(str::to_owned));
    }
    assert_eq!(wanted.len(), 3, "{wanted:?}");
    wanted.sort_unstable();
    let said = home.said(&["dns", "records", "--host", "web1.example.test"]);
    assert_eq!(said.lines().collect::<Vec<_>>(), wanted);
    assert_eq!(home.said(&["dns", "records", "--hosts", "--zone", "example.test"]), said);
    let generic = home.said(&["dns", "records", "--hosts", "--form", "generic", "--ttl", "60"]);
    assert!(generic.starts_with("web1.example.test. 60 IN TYPE44 \\# 34 0102"), "{generic}");

    // A key that no operator proved must not become one that the DNS vouches for.
    let sshd = testing::sshd::Sshd::start();
    let (address, port) = (sshd.address.to_string(), sshd.port.to_string());
    home.said(&[
        "host",
        "add",
        "db1.example.test",
        "--address",
        &address,
        "--port",
        &port,
        "--trust-on-first-use",
    ]);
    let refused = home.refused(&["dns", "records", "--host", "db1.example.test"], 1);
    assert!(refused.contains("no key of it is proved"), "{refused}");
    keygen(home.file("other").as_ref(), &["-t", "rsa", "-b", "2048"]);
    home.said(&["host", "add", "short", "--key", &format!("{}.pub", home.file("other"))]);
    let refused = home.refused(&["dns", "records", "--host", "short"], 1);
    assert!(refused.contains("short has no dot, so its zone is unknown"), "{refused}");
    let said = home.said(&["dns", "records", "--host", "short", "--zone", "example.test"]);
    assert!(said.starts_with("short.example.test. IN SSHFP 1 2 "), "{said}");
    assert!(home.refused(&["dns", "records"], 2).contains("no keys are named"));
    assert!(home.refused(&["dns", "records", "--host", "nobody.example.test"], 1).contains("no identity"));
}

#[test]
fn tlsa_records_are_those_of_danetool_for_what_is_served_and_for_what_comes_next() {
    let home = Home::new();
    let certificates = home.path().join("certificates");
    fs::create_dir(&certificates).unwrap();
    let pki = Pki::new(&home.path().join("pki"));
    let served = pki.issue("www", &["www.example.test", "example.test"], Time::Now);
    let authority = fs::read_to_string(pki.authority()).unwrap();
    let chain = fs::read_to_string(&served.certificate).unwrap() + &authority;
    let whole = chain.clone() + &fs::read_to_string(&served.key).unwrap();
    let pair = certificates.join("www.pem");
    fs::write(&pair, whole).unwrap();
    fs::set_permissions(&pair, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let config = home.file("penstock.toml");
    let text = format!(
        "[listener.web]\nbind = \":8443\"\npool = \"app\"\ntls = {{ certificates = \"{}\" }}\n[pool.app]\nbackends = [\"127.0.0.1:1\"]\n",
        certificates.display()
    );
    fs::write(&config, text).unwrap();
    let next = self_signed(home.path(), "next", &["www.example.test"], Time::Now);
    let danetool = |certificate: &str, more: &[&str]| {
        let words =
            ["danetool", "--tlsa-rr", "--host", "www.example.test", "--port", "8443", "--proto", "tcp"];
        let file = ["--load-certificate", certificate];
        let line = home.run(&[&words[..], &file, more].concat());
        let (_, data) = line.trim().split_once(" IN TLSA ( ").unwrap();
        let words: Vec<String> = data.trim_end_matches(" )").split(' ').map(str::to_owned).collect();
        let number = |word: &String| u8::from_str_radix(word, 16).unwrap();
        format!(
            "_8443._tcp.www.example.test. IN TLSA {} {} {} {}\n",
            number(&words[0]),
            number(&words[1]),
            number(&words[2]),
            words[3]
        )
    };
    let next_file = next.certificate.display().to_string();
    let of_next = danetool(&next_file, &[]);
    let of_served = danetool(&served.certificate.display().to_string(), &[]);
    let records = |more: &[&str]| home.said(&[&["dns", "records", "--config", &config], more].concat());
    let said = records(&[]);
    assert_eq!(said.lines().count(), 2, "{said}");
    assert!(said.contains(&of_served) && said.contains("_8443._tcp.example.test. IN TLSA 3 1 1 "), "{said}");
    let said = records(&["--next", &next_file, "--zone", "www.example.test"]);
    assert_eq!(said.lines().count(), 2, "{said}");
    assert!(said.contains(&of_served) && said.contains(&of_next), "{said}");

    let of_authority = danetool(&pki.authority().display().to_string(), &["--ca"]);
    let said = records(&["--tlsa", "authority", "--zone", "www.example.test"]);
    assert_eq!(said, of_authority);
    let refused = home.refused(&["dns", "records", "--next", &next_file, "--tlsa", "authority"], 1);
    assert!(refused.contains("2 1 1 needs one"), "{refused}");

    let wild =
        self_signed(home.path(), "wild", &["*.example.test"], Time::Now).certificate.display().to_string();
    let refused = home.refused(&["dns", "records", "--next", &wild], 1);
    assert!(refused.contains("*.example.test stands for many hosts"), "{refused}");
    let said = home.said(&["dns", "records", "--next", &wild, "--name", "a.example.test"]);
    assert!(said.starts_with("_443._tcp.a.example.test. IN TLSA 3 1 1 "), "{said}");
    let json: serde_json::Value =
        serde_json::from_str(&home.said(&["dns", "records", "--config", &config, "--json"])).unwrap();
    assert_eq!(json["records"][0]["type"], "TLSA");
    assert_eq!(json["records"][1]["of"], "listener web");
}

#[test]
fn openpgp_records_are_those_of_gpg_and_wrong_keys_are_refused() {
    let home = Home::new();
    let key = home.openpgp(&["Alice <alice@example.test>", "Alice elsewhere <alice@elsewhere.test>"]);
    // `$ORIGIN _openpgpkey.example.test.`, then `HASH TYPE61 \# LENGTH (`, lines of hexadecimal digits, and `)`.
    let mut of_gpg = Vec::new();
    for domain in ["example.test", "elsewhere.test"] {
        let filter = format!("keep-uid=mbox = alice@{domain}");
        let dane = ["--export-options", "export-dane", "--export-filter", &filter];
        let text = home.run(&[&["gpg", "--batch"], &dane[..], &["--export", "alice@example.test"]].concat());
        let lines: Vec<&str> =
            text.lines().filter(|line| !line.starts_with(';') && !line.is_empty()).collect();
        let at = lines.iter().position(|line| *line == format!("$ORIGIN _openpgpkey.{domain}.")).unwrap();
        let (hash, rest) = lines[at + 1].split_once(" TYPE61 \\# ").unwrap();
        let length = rest.trim_end_matches(" (");
        let digits = lines[at + 2..].iter().take_while(|line| !line.contains(')'));
        let digits: String = digits.map(|line| line.trim()).collect();
        of_gpg
            .push(format!("{hash}._openpgpkey.{domain}. IN TYPE61 \\# {length} {}\n", digits.to_lowercase()));
    }
    let records = |more: &[&str]| {
        home.said(&[&["dns", "records", "--openpgp", &key, "--form", "generic"], more].concat())
    };
    let mut said: Vec<String> = records(&[]).lines().map(|line| format!("{line}\n")).collect();
    said.sort_unstable();
    of_gpg.sort_unstable();
    assert_eq!(said, of_gpg);
    let said = records(&["--zone", "example.test"]);
    assert!(
        said.starts_with(
            "2bd806c97f0e00af1a1fc3328fa763a9269723c8db8fac4f93af71db._openpgpkey.example.test. "
        ),
        "{said}"
    );

    // Armor makes no difference.
    let armored = home.file("key.asc");
    home.run(&["gpg", "--batch", "--armor", "--output", &armored, "--export", "alice@example.test"]);
    assert_eq!(home.said(&["dns", "records", "--openpgp", &armored, "--form", "generic"]), records(&[]));

    let cert = home.said(&[
        "dns",
        "records",
        "--openpgp",
        &key,
        "--address",
        "alice@example.test",
        "--cert",
        "--ipgp",
        "https://example.test/a",
    ]);
    assert!(
        cert.contains("alice.example.test. IN CERT PGP 0 0 ")
            && cert.contains("alice.example.test. IN CERT IPGP 0 0 "),
        "{cert}"
    );

    let refused = home.refused(&["dns", "records", "--openpgp", &key, "--address", "bob@example.test"], 1);
    assert!(
        refused.contains("has no user ID with the address bob@example.test; it has alice@example.test"),
        "{refused}"
    );
    let secret = home.file("secret");
    home.run(&[
        "gpg",
        "--batch",
        "--pinentry-mode",
        "loopback",
        "--passphrase",
        "",
        "--output",
        &secret,
        "--export-secret-keys",
    ]);
    let refused = home.refused(&["dns", "records", "--openpgp", &secret], 1);
    assert!(refused.contains("it holds a SECRET key"), "{refused}");
    let cut = home.file("cut");
    fs::write(&cut, &fs::read(&key).unwrap()[..100]).unwrap();
    let refused = home.refused(&["dns", "records", "--openpgp", &cut], 1);
    assert!(refused.contains("the file is cut off there"), "{refused}");
}

#[test]
fn a_file_that_the_command_line_names_and_that_cannot_be_read_is_wrong_usage_everywhere() {
    let (home, none) = (Home::new(), "/nonexistent/file");
    let key = home.file("k");
    keygen(key.as_ref(), &["-t", "ed25519"]);
    home.said(&["host", "add", "web1.example.test", "--key", &format!("{key}.pub")]);
    let server = ["--server", "127.0.0.1:9", "--tsig", none];
    let (store, seal) = (home.file("store"), home.file("store.key"));
    let otp = ["otp", "--store", &store, "--key-file", &seal];
    home.said(&[&otp[..], &["init"]].concat());
    for words in [
        &["dns", "records", "--config", none][..],
        &["dns", "records", "--next", none],
        &["dns", "records", "--openpgp", none],
        &["dns", "check", "--next", none],
        &[&["dns", "push", "--hosts"], &server[..]].concat(),
        &[&["dns", "roll", "--next", none, "--into", "/tmp/none"], &server[..]].concat(),
        &["host", "add", "web2.example.test", "--key", none],
        &["host", "import", none],
        &[&otp[..], &["import", "ksm", none]].concat(),
        &["user", "who", none],
        &["run", "--hosts", none, "true"],
        &["check", none],
    ] {
        let refused = home.refused(words, 2);
        assert!(refused.contains(none) && refused.contains("cannot read"), "{words:?}: {refused}");
    }
    // Neither a proof nor a hint is a command line that says nothing.
    assert!(home.refused(&["host", "add", "web2.example.test"], 2).contains("neither a proof nor a hint"));
}
