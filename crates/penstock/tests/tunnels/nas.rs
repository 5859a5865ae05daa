//! The example `examples/nas` from one end to the other, with its own files: a real NFS server that only its loopback address
//! reaches, the shipped sshd settings, rsnapshot as the job. Where the kernel has no NFS client, NFS is spoken by libnfs, and
//! what is mounted is sshfs through the same tunnel.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use testing::sshd::{Sshd, program};
use testing::tunnel::Place;
use testing::{eventually, port, secs};

fn shipped(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/nas").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Replaces a piece of a shipped file by what this machine has; the piece must be there.
fn with(text: &str, pieces: &[(&str, &str)]) -> String {
    pieces.iter().fold(text.to_owned(), |text, (piece, instead)| {
        assert!(text.contains(piece), "no {piece:?} in:\n{text}");
        text.replace(piece, instead)
    })
}

struct Service(Child);

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn service(command: &mut Command) -> Service {
    Service(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
}

struct Nas {
    place: Place,
    point: PathBuf,
    _services: [Service; 2],
}

/// The NAS and the machine that is backed up, both here.
fn nas() -> Nas {
    let home = tempfile::tempdir().unwrap();
    let (nfs, sftp) = (port::free(), port::free());
    let settings = home.path().join("tunnel.conf");
    let user = nix::unistd::User::from_uid(nix::unistd::geteuid()).unwrap().unwrap().name;
    let permitted = format!("PermitOpen 127.0.0.1:{nfs} 127.0.0.1:{sftp}");
    let pieces = [
        ("Match User nas-backup", &*format!("Match User {user}")),
        ("PermitOpen 127.0.0.1:2049", &permitted),
    ];
    fs::write(&settings, with(&shipped("nas/sshd.conf"), &pieces)).unwrap();
    let place = Place::with(Sshd::with(&format!("Include {}", settings.display())));
    for name in ["storage", "recovery", "point", "source"] {
        fs::create_dir(place.path(name)).unwrap();
    }
    let pieces = [
        ("NFS_Port = 2049;", &*format!("NFS_Port = {nfs};")),
        ("Path = /storage;", &format!("Path = {};", place.shown("storage"))),
        (
            "RecoveryRoot = /var/lib/nfs/ganesha;",
            &format!("RecoveryRoot = {}; Graceless = true;", place.shown("recovery")),
        ),
    ];
    place.write("ganesha.conf", &with(&shipped("nas/ganesha.conf"), &pieces));
    let ganesha = service(Command::new(program("ganesha.nfsd")).args([
        "-F",
        "-f",
        &place.shown("ganesha.conf"),
        "-L",
        &place.shown("ganesha.log"),
        "-p",
        &place.shown("ganesha.pid"),
        "-N",
        "NIV_EVENT",
    ]));
    let server = format!("TCP-LISTEN:{sftp},bind=127.0.0.1,fork,reuseaddr");
    let files = service(Command::new(program("socat")).arg(server).arg("EXEC:/usr/lib/openssh/sftp-server"));
    eventually("ganesha", secs(60), || {
        let log = fs::read_to_string(place.path("ganesha.log")).unwrap_or_default();
        log.contains("NFS SERVER INITIALIZED").then_some(())
    });
    eventually("the server of files", secs(10), || std::net::TcpStream::connect(("127.0.0.1", sftp)).ok());
    let tunnel = shipped("backup/penstock.toml");
    let (before, after) = (tunnel.find("mount = [").unwrap(), tunnel.find("\n]\n").unwrap() + 2);
    let mount = format!(
        "mount = [\"sshfs\", \"-o\", \"directport={{files.port}}\", \"127.0.0.1:{}\", \"{{mount-point}}\"]",
        place.shown("storage")
    );
    let tunnel = tunnel.replace(&tunnel[before..after], &mount);
    let tunnel = with(
        &tunnel,
        &[
            ("host = \"nas\"", "host = \"far\""),
            ("/mnt/nas", &place.shown("point")),
            ("127.0.0.1:2049", &format!("127.0.0.1:{nfs}")),
            ("/etc/rsnapshot-nas.conf", &place.shown("rsnapshot.conf")),
        ],
    );
    place.configure(&format!("{tunnel}\n[tunnel.nas.forward.files]\nconnect = \"127.0.0.1:{sftp}\"\n"));
    let hang = place.script("hang.sh", "touch $D/backing-up\nwhile [ -e $D/hang ]; do sleep 0.02; done");
    let pieces = [
        ("/mnt/nas/", &*format!("{}/", place.shown("point"))),
        ("/run/rsnapshot-nas.pid", &place.shown("rsnapshot.pid")),
        ("backup\t/etc/\tlocalhost/", &format!("backup\t{}/\tlocalhost/", place.shown("source"))),
        ("backup\t/home/\tlocalhost/", &format!("cmd_preexec\t{hang}")),
        ("cmd_logger\t/usr/bin/logger\n", ""),
    ];
    place.write("rsnapshot.conf", &with(&shipped("backup/rsnapshot.conf"), &pieces));
    let point = place.path("point");
    Nas { place, point, _services: [ganesha, files] }
}

#[test]
fn a_backup_goes_through_the_tunnel_and_what_is_killed_is_cleaned_up_by_the_next_one() {
    let Nas { place, point, _services } = nas();
    place.write("source/letter", "to be kept");
    place.run(&["check", "nas"]).code(0).says("answers: NFS version 4");
    place.run(&["with", "nas"]).code(0).says("mounted: fuse.sshfs");
    place.is_clean();
    assert!(fs::read_dir(&point).unwrap().next().is_none(), "something was written beside the mount");
    // What NFS says is there, through the tunnel and while it is mounted.
    let kept = format!("snapshots/daily.0/localhost{}/letter", place.shown("source"));
    let read = format!(
        "nfs-ls -R 'nfs://127.0.0.1/storage?nfsport='$TUNNEL_NFS_PORT'&version=4' && \
         nfs-cp 'nfs://127.0.0.1/storage/{kept}?nfsport='$TUNNEL_NFS_PORT'&version=4' {0}/back && cmp {0}/back {0}/source/letter && \
         cmp {0}/back $TUNNEL_MOUNT_POINT/{kept}",
        place.directory.path().display()
    );
    place.run(&["with", "nas", "--", "sh", "-c", &read]).code(0).says("/letter");
    // Killed in the middle of the next backup.
    place.write("hang", "");
    let _ = fs::remove_file(place.path("backing-up"));
    let running = place.start(&["with", "nas"]);
    eventually("the backup", secs(30), || place.path("backing-up").exists().then_some(()));
    running.kill();
    // sshfs may unmount by itself once its connection is gone; NFS would not.
    assert!(place.list("nas").contains("+ mount"), "{}", place.list("nas"));
    place.write("source/second", "added");
    let next = place.start(&["with", "nas"]);
    // Until then the earlier backup must not go on: it would write beside a mount that is gone.
    next.wait_for("the leftovers of an earlier run are undone");
    fs::remove_file(place.path("hang")).unwrap();
    next.finish().code(0);
    place.is_clean();
    let second = format!("storage/snapshots/daily.0/localhost{}/second", place.shown("source"));
    assert_eq!(fs::read_to_string(place.path(&second)).unwrap(), "added");
    assert!(place.path("storage/snapshots/daily.1").exists());
    // rsnapshot's own verdict is ours.
    place.write("rsnapshot.conf", "broken\n");
    place.run(&["with", "nas"]).code(1);
    place.is_clean();
}

#[test]
fn the_nas_gives_nothing_but_its_one_port() {
    let Nas { place, _services, .. } = nas();
    let text = fs::read_to_string(place.path("penstock.toml")).unwrap();
    let secret = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = secret.local_addr().unwrap().port();
    place.configure(&format!("{text}\n[tunnel.nas.forward.secret]\nconnect = \"127.0.0.1:{port}\"\n"));
    let ran = place.run(&["check", "nas"]);
    ran.code(1)
        .says("nfs: 127.0.0.1")
        .says("answers: NFS version 4")
        .says(&format!("{port} does not answer"));
    place.run(&["check", "nas", "--engine", "openssh"]).code(1).says("closed the connection at once");
    let shell =
        Command::new(place.path("bin/ssh")).args(["-o", "BatchMode=yes", "far", "id"]).output().unwrap();
    assert!(!shell.status.success() && !String::from_utf8_lossy(&shell.stdout).contains("uid="), "{shell:?}");
}

#[test]
fn the_shipped_files_are_what_their_programs_take() {
    let place = Place::new();
    place.write("rsnapshot.conf", &shipped("backup/rsnapshot.conf"));
    place.write("nftables.conf", &shipped("nas/nftables.conf"));
    for command in [
        Command::new(program("rsnapshot")).arg("-c").arg(place.path("rsnapshot.conf")).arg("configtest"),
        Command::new(program("nft")).arg("-c").arg("-f").arg(place.path("nftables.conf")),
        Command::new(testing::binary()).arg("check").arg("--strict").arg("-").env_clear().stdin(Stdio::from(
            {
                place.write("shipped.toml", &shipped("backup/penstock.toml"));
                fs::File::open(place.path("shipped.toml")).unwrap()
            },
        )),
    ] {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{command:?}: {output:?}");
    }
}
