use super::*;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// A directory for keys that ssh-keygen and openssl make.
struct Made(tempfile::TempDir);

impl Made {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn run(&self, program: &str, arguments: &[&str]) {
        let output = Command::new(program).args(arguments).current_dir(self.0.path()).output();
        let output = output.unwrap_or_else(|error| panic!("{program}: {error}: run `make setup`"));
        assert!(
            output.status.success(),
            "{program} {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    /// Makes a key with ssh-keygen, and returns its path.
    fn key(&self, name: &str, arguments: &[&str]) -> PathBuf {
        let mut all = vec!["-q", "-f", name];
        if !arguments.contains(&"-N") {
            all.extend(["-N", ""]);
        }
        all.extend(arguments);
        self.run("ssh-keygen", &all);
        self.path(name)
    }

    /// Writes a file with mode 0600.
    fn file(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        std::fs::write(self.path(name), text).unwrap();
        self.private(name)
    }

    fn private(&self, name: &str) -> PathBuf {
        std::fs::set_permissions(self.path(name), std::fs::Permissions::from_mode(0o600)).unwrap();
        self.path(name)
    }
}

fn fault(path: &Path) -> Fault {
    KeyFile::read(path).map(|_| ()).unwrap_err().fault
}

/// Compares a key with the `.pub` file beside `path`.
fn is_of(key: &PublicKey, path: &Path) -> bool {
    public_beside(path).unwrap().key_data() == key.key_data()
}

#[test]
fn every_form_that_ssh_keygen_and_openssl_write_is_read() {
    let made = Made::new();
    for (kind, bits) in
        [("ed25519", "256"), ("ecdsa", "256"), ("ecdsa", "384"), ("ecdsa", "521"), ("rsa", "2048")]
    {
        for form in ["RFC4716", "PKCS8", "PEM"] {
            if kind == "ed25519" && form != "RFC4716" {
                continue;
            }
            let name = format!("{kind}{bits}{form}");
            let path = made.key(&name, &["-t", kind, "-b", bits, "-m", form]);
            let key = KeyFile::read(&path).unwrap_or_else(|fault| panic!("{name}: {fault}"));
            assert!(is_of(key.public.as_ref().unwrap(), &path), "{name}");
            assert!(matches!(key.private, Private::Open(_)), "{name}");
        }
    }
    made.run("openssl", &["genpkey", "-algorithm", "ed25519", "-out", "pkcs8"]);
    assert!(matches!(KeyFile::read(&made.private("pkcs8")).unwrap().private, Private::Open(_)));
}

#[test]
fn an_encrypted_key_says_whose_it_is_and_opens_with_its_passphrase_only() {
    let made = Made::new();
    for (kind, form) in [
        ("ed25519", "RFC4716"),
        ("ecdsa", "RFC4716"),
        ("rsa", "RFC4716"),
        ("rsa", "PEM"),
        ("rsa", "PKCS8"),
        ("ecdsa", "PKCS8"),
    ] {
        let name = format!("{kind}{form}");
        let path = made.key(&name, &["-t", kind, "-m", form, "-N", "right one"]);
        let key = KeyFile::read(&path).unwrap_or_else(|fault| panic!("{name}: {fault}"));
        assert!(is_of(key.public.as_ref().unwrap(), &path), "{name}");
        let Private::Locked(text) = &key.private else { panic!("{name} is not locked") };
        assert_eq!(open(text, &path, "wrong one").unwrap_err().fault, Fault::WrongPassphrase, "{name}");
        let opened = open(text, &path, "right one").unwrap_or_else(|fault| panic!("{name}: {fault}"));
        assert!(is_of(opened.public_key(), &path), "{name}");
        std::fs::remove_file(path.with_extension("pub")).unwrap();
        let alone = KeyFile::read(&path).unwrap();
        assert_eq!(
            alone.public.is_some(),
            form == "RFC4716",
            "{name}: only the OpenSSH form says it in clear"
        );
    }
}

#[test]
fn each_thing_that_is_no_private_key_has_its_own_fault() {
    let made = Made::new();
    let key = made.key("key", &["-t", "ed25519"]);
    let text = std::fs::read_to_string(&key).unwrap();
    assert_eq!(fault(&made.path("none")), Fault::Missing);
    assert_eq!(fault(made.0.path()), Fault::NotAFile("a directory"));
    assert_eq!(fault(&made.file("empty", "")), Fault::Empty);
    assert_eq!(fault(&made.file("noise", [0xff; 300])), Fault::NoKey);
    assert_eq!(fault(&made.file("words", "not a key\n")), Fault::NoKey);
    let long = fault(&made.file("long", vec![b'a'; 70_000]));
    assert_eq!(long, Fault::TooLong { longest: LONGEST_FILE });
    assert_eq!(fault(&made.file("cut", &text[..text.len() / 2])), Fault::CutOff);
    let hole: String =
        text.lines().enumerate().filter(|(at, _)| *at != 2).map(|(_, line)| format!("{line}\n")).collect();
    assert!(matches!(fault(&made.file("hole", hole)), Fault::Broken(_)));
    assert_eq!(fault(&made.file("putty", "PuTTY-User-Key-File-3: ssh-ed25519\n")), Fault::Putty);
}

#[test]
fn a_fifo_and_a_device_do_not_make_us_wait() {
    let made = Made::new();
    nix::unistd::mkfifo(&made.path("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert_eq!(fault(&made.path("fifo")), Fault::NotAFile("a FIFO"));
    assert_eq!(fault(Path::new("/dev/zero")), Fault::NotAFile("a device"));
}

#[test]
fn a_key_that_others_can_read_is_refused_with_the_command_that_helps() {
    let made = Made::new();
    let path = made.key("my key", &["-t", "ed25519"]);
    for mode in [0o644, 0o640, 0o604, 0o620, 0o602] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let fault = KeyFile::read(&path).map(|_| ()).unwrap_err();
        assert_eq!(fault.fault, Fault::Exposed { mode, keep: 0o600 });
        let quoted = format!("chmod 600 '{}'", path.display());
        assert!(fault.advice().unwrap().starts_with(&quoted), "{fault}");
    }
    let metadata = std::fs::metadata(&path).unwrap();
    let ours = nix::unistd::geteuid().as_raw();
    for (mode, refused) in [(0o600, false), (0o640, false), (0o644, true), (0o660, true)] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let metadata = std::fs::metadata(&path).unwrap_or(metadata.clone());
        assert_eq!(exposed(&path, &metadata, ours + 1).is_some(), refused, "{mode:o} of another user");
    }
}

#[test]
fn a_public_key_names_a_key_of_the_agent() {
    let made = Made::new();
    let path = made.key("key", &["-t", "ed25519"]).with_extension("pub");
    let key = KeyFile::read(&path).unwrap();
    assert!(matches!(key.private, Private::Elsewhere));
    assert!(key.public.is_some());
}

#[test]
fn keys_of_other_kinds_say_what_to_do() {
    let made = Made::new();
    made.run("openssl", &["genrsa", "-aes256", "-traditional", "-passout", "pass:x", "-out", "old", "2048"]);
    assert_eq!(fault(&made.private("old")), Fault::OldEncryption);
    made.run("openssl", &["genpkey", "-algorithm", "x25519", "-out", "x25519"]);
    assert!(matches!(fault(&made.private("x25519")), Fault::Broken(_)));
    made.run("openssl", &["pkey", "-in", "x25519", "-pubout", "-out", "public.pem"]);
    assert_eq!(fault(&made.private("public.pem")), Fault::PublicPem);
    let fido = made.file("fido", fido_key());
    assert_eq!(fault(&fido), Fault::Fido);
    assert!(KeyFile::read(&fido).map(|_| ()).unwrap_err().advice().unwrap().contains("ssh-add"));
}

/// Returns the clear part of a FIDO key, as ssh-keygen -t ed25519-sk writes it (PROTOCOL.key).
fn fido_key() -> String {
    let string = |bytes: &[u8]| [&u32::try_from(bytes.len()).unwrap().to_be_bytes(), bytes].concat();
    let public = [string(b"sk-ssh-ed25519@openssh.com"), string(&[7; 32]), string(b"ssh:")].concat();
    let none = [string(b"none"), string(b"none"), string(b"")].concat();
    let bytes =
        [b"openssh-key-v1\0".as_slice(), &none, &1_u32.to_be_bytes(), &string(&public), &string(&[1; 64])]
            .concat();
    format!(
        "-----BEGIN OPENSSH PRIVATE KEY-----\n{}\n-----END OPENSSH PRIVATE KEY-----\n",
        Base64::encode_string(&bytes)
    )
}

#[test]
fn no_damage_to_a_key_file_makes_reading_it_panic() {
    let made = Made::new();
    for form in ["RFC4716", "PEM", "PKCS8"] {
        for phrase in ["", "phrase"] {
            let name = format!("{form}{phrase}");
            let text = std::fs::read(made.key(&name, &["-t", "ecdsa", "-m", form, "-N", phrase])).unwrap();
            for at in (0..text.len()).step_by(7) {
                let mut damaged = text.clone();
                damaged[at] = if damaged[at] == b'A' { b'B' } else { b'A' };
                let path = made.file("damaged", &damaged);
                if let Ok(KeyFile { private: Private::Locked(text), .. }) = KeyFile::read(&path)
                    && form != "RFC4716"
                {
                    let _ = open(&text, &path, phrase);
                }
            }
        }
    }
}
