use std::os::unix::fs::{PermissionsExt, symlink};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::*;

fn home() -> (tempfile::TempDir, Local) {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join(".ssh")).unwrap();
    let home = dir.path().to_str().unwrap().to_owned();
    let local =
        Local { user: "me".to_owned(), uid: Uid::effective().as_raw(), home, hostname: "here".to_owned() };
    (dir, local)
}

fn port(files: &ConfigFiles, local: &Local) -> Result<u16, String> {
    let config = SshConfig::of(files, local.clone(), KnownAlgorithms::openssh());
    let resolved = config.resolve(&Asked::parse("web1").unwrap());
    resolved.map(|resolved| resolved.port).map_err(|faults| faults.to_string())
}

#[test]
fn pipe_that_is_included_or_in_the_usual_place_is_refused_at_once() {
    let (dir, local) = home();
    let usual = dir.path().join(".ssh/config");
    let pipe = dir.path().join("pipe");
    mkfifo(&pipe, Mode::S_IRWXU).unwrap();
    fs::write(&usual, format!("Include {}\n", pipe.display())).unwrap();
    let included = port(&ConfigFiles::Usual, &local).unwrap_err();
    assert_eq!(included, format!("{}: it cannot be read: it is not a regular file", pipe.display()));
    // The fault is the same if the user names the including file.
    assert_eq!(port(&ConfigFiles::Only(usual.clone()), &local).unwrap_err(), included);
    fs::remove_file(&usual).unwrap();
    mkfifo(&usual, Mode::S_IRWXU).unwrap();
    let fault = port(&ConfigFiles::Usual, &local).unwrap_err();
    assert_eq!(fault, format!("{}: it cannot be read: it is not a regular file", usual.display()));
    // A symbolic link to /dev/null is the usual way to make a file empty.
    fs::remove_file(&usual).unwrap();
    symlink("/dev/null", &usual).unwrap();
    assert_eq!(port(&ConfigFiles::Only(usual), &local), Ok(22));
}

#[test]
fn pipe_that_was_given_is_read_to_its_end() {
    let (dir, local) = home();
    let pipe = dir.path().join("pipe");
    mkfifo(&pipe, Mode::S_IRWXU).unwrap();
    let writing = std::thread::spawn({
        let pipe = pipe.clone();
        move || {
            // The open waits for the reader.
            let mut pipe = fs::OpenOptions::new().write(true).open(pipe).unwrap();
            let comments = "# filling more than a pipe holds\n".repeat(4096);
            std::io::Write::write_all(&mut pipe, comments.as_bytes()).unwrap();
            std::io::Write::write_all(&mut pipe, b"Port 2222\n").unwrap();
        }
    });
    assert_eq!(port(&ConfigFiles::Only(pipe), &local), Ok(2222));
    writing.join().unwrap();
    assert_eq!(port(&ConfigFiles::Only("/dev/null".into()), &local), Ok(22));
}

#[test]
fn pipe_that_nobody_writes_to_is_given_up() {
    let (dir, _) = home();
    let pipe = dir.path().join("pipe");
    mkfifo(&pipe, Mode::S_IRWXU).unwrap();
    let open = fs::OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(pipe).unwrap();
    let fault = to_the_end(open, Duration::from_millis(100)).unwrap_err();
    assert_eq!(fault, "it is a pipe or a device that had no end within 0.1 s");
}

#[test]
fn include_finds_what_glob_finds_for_ssh() {
    let (dir, local) = home();
    let place = dir.path().display();
    for (name, port) in
        [("x.conf", 1), ("a/x.conf", 2), ("a/b/x.conf", 3), ("secret/x.conf", 4), ("z/y.conf", 5)]
    {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("Port {port}\n")).unwrap();
    }
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(dir.path().join("secret"), fs::Permissions::from_mode(0o000)).unwrap();
    let config = dir.path().join("config");
    for (patterns, port_found) in [
        ("**/x.conf", Ok(2)),
        ("a/**", Ok(2)),
        ("*/*.conf", Ok(2)),
        ("secret/*.conf z/*.conf", Ok(5)),
        ("secret/x.conf */y.conf", Ok(5)),
        ("x.conf/y [xz]/y.conf", Ok(5)),
    ] {
        let included: Vec<String> =
            patterns.split(' ').map(|pattern| format!("Include {place}/{pattern}\n")).collect();
        fs::write(&config, included.concat()).unwrap();
        let (files, local) = (ConfigFiles::Only(config.clone()), local.clone());
        // The thread runs without root's rights to read every file: setfsuid(2) changes only this thread.
        let nobody = std::thread::spawn(move || {
            unistd::setfsuid(if local.uid == 0 { Uid::from_raw(65534) } else { Uid::from_raw(local.uid) });
            port(&files, &local)
        });
        assert_eq!(nobody.join().unwrap(), port_found, "{patterns}");
    }
    fs::set_permissions(dir.path().join("secret"), fs::Permissions::from_mode(0o700)).unwrap();
}
