//! The options of Pen's command line. A new variant does not compile until `row` here and `option` in `take.rs` decide about it.

use super::row::rows;

text::words! {
    /// An option of Pen.
    pub(crate) enum Opt: "option of Pen" {
        Abuse = "B",
        Control = "C",
        DelayedForward = "D",
        File = "F",
        Http = "H",
        HashOnly = "N",
        Command = "O",
        CommandToo = "o",
        Poll = "P",
        Kqueue = "Q",
        ServerTable = "S",
        Tracking = "T",
        Udp = "U",
        Weight = "W",
        Exit = "X",
        Ascii = "a",
        Blacklist = "b",
        ClientsMax = "c",
        Debug = "d",
        Emergency = "e",
        Foreground = "f",
        Hash = "h",
        Service = "i",
        Jail = "j",
        Log = "l",
        MultiAccept = "m",
        NonBlocking = "n",
        PidFile = "p",
        Backlog = "q",
        RoundRobin = "r",
        Stubborn = "s",
        Timeout = "t",
        User = "u",
        ConnMax = "x",
        Status = "w",
        Certificate = "E",
        Key = "K",
        CaFile = "G",
        CaDirectory = "A",
        SslCompat = "Z",
        RequirePeer = "R",
        SslProtocol = "L",
    }
}

impl Opt {
    rows! {
        Abuse: "host:port", "abuse server for clients that `client_acl` denies",
            Keys("`denied-pool` of the listener, and a pool `abuse`"),
            "-B 10.0.0.9:80 -O client_acl~1 -O acl~1~deny~10.9.0.0~255.255.0.0 80 10.0.0.1", "denied-pool = \"abuse\"";
        Control: "port\\|/path", "control socket",
            Keys("`socket` of `[control]`, for `penstock ctl`. A port is gone: it had no password"),
            "-C /run/pen.ctl 80 10.0.0.1", "socket = \"/run/pen.ctl\"";
        DelayedForward: "", "nothing since Pen 0.26", Gone("Pen ignores it too"),
            "-D 80 10.0.0.1", "dropped: -D: Pen ignores it too";
        File: "file", "file of commands", Keys("its commands are translated as well"),
            "-F /etc/pen.cfg 80 10.0.0.1", "ejection = \"7s\"";
        Http: "", "adds X-Forwarded-For and X-Forwarded-Proto",
            Keys("`protocol = \"http\"`: also for PUT, DELETE and the like, and a client cannot forge them"),
            "-H 80 10.0.0.1", "protocol = \"http\"";
        HashOnly: "", "in Pen's usage, but not in its code", Gone("Pen prints its usage and ends: an error here too"),
            "-N 80 10.0.0.1", "-N";
        Command: "command", "a command at the start", Keys("the command is translated as well"),
            "-O blacklist~7 80 10.0.0.1", "ejection = \"7s\"";
        CommandToo: "command", "the same", Keys("the command is translated as well"),
            "-o blacklist~7 80 10.0.0.1", "ejection = \"7s\"";
        Poll: "", "poll()", Needless("epoll is always used"),
            "-P 80 10.0.0.1", "dropped: -P: epoll is always used";
        Kqueue: "", "nothing since Pen 0.26", Gone("Pen ignores it too"),
            "-Q 80 10.0.0.1", "dropped: -Q: Pen ignores it too";
        ServerTable: "n", "nothing since Pen 0.28.1", Gone("Pen ignores it too"),
            "-S 16 80 10.0.0.1", "dropped: -S 16: Pen ignores it too";
        Tracking: "sec", "time that a client is remembered; 0 is for ever", Keys("`sticky.ttl`"),
            "-T 60 80 10.0.0.1 10.0.0.2", "sticky = { ttl = \"60s\" }";
        Udp: "", "UDP", Keys("`protocol = \"udp\"`"),
            "-U 53 10.0.0.1", "protocol = \"udp\"";
        Weight: "", "fewest connections by weight",
            Keys("`balance = \"least-connections\"` with `-r`, else `\"sticky\"`; `weight` of the backends"),
            "-W -r 80 10.0.0.1:80:0:0:2 10.0.0.2:80:0:0:1", "balance = \"least-connections\"";
        Exit: "", "`exit` on the control socket",
            Elsewhere("`penstock ctl stop` is always there, for the owner of the control socket"),
            "-X 80 10.0.0.1", "dropped: -X: `penstock ctl stop`";
        Ascii: "", "dumps as text", Elsewhere("`penstock ctl capture` writes the bytes of sessions into a file, and `tshark -r FILE -x` shows them"),
            "-a 80 10.0.0.1", "dropped: -a: `penstock ctl capture`";
        Blacklist: "sec", "time without a server that did not answer; default 30",
            Keys("`passive = { failures = 1, ejection = ... }`"),
            "-b 7 80 10.0.0.1", "passive = { failures = 1, ejection = \"7s\" }";
        ClientsMax: "N", "number of clients that are remembered",
            Keys("`sticky.entries`; without `-c` 65536, not 2048"),
            "-c 4096 80 10.0.0.1 10.0.0.2", "entries = 4096";
        Debug: "", "debug messages", Elsewhere("`penstock ctl log-level debug`, or PENSTOCK_LOG=debug from the start"),
            "-dd 80 10.0.0.1", "dropped: -d: `penstock ctl log-level debug`";
        Emergency: "host:port", "server of last resort", Keys("`fallback` of the pool, and a pool `emergency`"),
            "-e 10.0.0.9:80 80 10.0.0.1", "fallback = \"emergency\"";
        Foreground: "", "stay in the foreground", Needless("always so: systemd keeps the process"),
            "-f 80 10.0.0.1", "dropped: -f: always so";
        Hash: "", "first server by a hash of the client's address",
            Keys("`balance = \"hash\"`; with `-r` `\"round-robin\"`"),
            "-h 80 10.0.0.1 10.0.0.2", "balance = \"hash\"";
        Service: "name", "a service of Windows", Gone("Pen ends with \"Windows only\": an error here too"),
            "-i pen 80 10.0.0.1", "-i";
        Jail: "dir", "chroot",
            Needless("Landlock and seccomp leave the process only the files and system calls that it needs"),
            "-j /var/empty 80 10.0.0.1", "dropped: -j /var/empty: Landlock";
        Log: "file\\|host:port", "log", Keys("`target` of `[access-log]`, in another format; in place of penlogd a receiver of syslog messages: `syslog+udp://host:port`"),
            "-l /var/log/pen.log 80 10.0.0.1", "target = \"/var/log/pen.log\"";
        MultiAccept: "n", "connections accepted at once", Needless("every worker accepts what has arrived"),
            "-m 10 80 10.0.0.1", "dropped: -m 10: every worker";
        NonBlocking: "", "nothing since Pen 0.26", Gone("Pen ignores it too"),
            "-n 80 10.0.0.1", "dropped: -n: Pen ignores it too";
        PidFile: "file", "process id", Keys("`pid-file` of `[process]`"),
            "-p /run/pen.pid 80 10.0.0.1", "pid-file = \"/run/pen.pid\"";
        Backlog: "n", "clients that wait in the kernel; at least 50", Keys("`backlog` of the listener"),
            "-q 900 80 10.0.0.1", "backlog = 900";
        RoundRobin: "", "do not remember clients", Keys("`balance = \"round-robin\"`"),
            "-r 80 10.0.0.1 10.0.0.2", "balance = \"round-robin\"";
        Stubborn: "", "no failover", Keys("`retries = 0`"),
            "-s 80 10.0.0.1 10.0.0.2", "retries = 0";
        Timeout: "sec", "time to connect; 3, whatever the manual says", Keys("`timeouts.connect` of the pool"),
            "-t 9 80 10.0.0.1", "timeouts = { connect = \"9s\" }";
        User: "user", "user of the process", Keys("`user` of `[process]`, with its groups"),
            "-u www-data 80 10.0.0.1", "user = \"www-data\"";
        ConnMax: "N", "connections; default 500", Keys("`max-connections` of `[process]`; with UDP `max-flows`"),
            "-x 77 80 10.0.0.1", "max-connections = 77";
        Status: "file", "status page",
            Elsewhere("`/status.html` of `[admin]`, with `bind = \"127.0.0.1:9900\"`: live, and not a file that is as old as its signal"),
            "-w /tmp/pen.html 80 10.0.0.1", "dropped: -w /tmp/pen.html: `/status.html`";
        Certificate: "file", "certificate", Keys("`tls.certificates` and `tls.default` of the listener: certificates of the whole directory of the file are used, and a key that others can read is refused"),
            "-E /etc/pen/site.pem 443 10.0.0.1", "default = \"site\"";
        Key: "file", "its key", Keys("beside the certificate in the directory `tls.certificates`"),
            "-E /etc/pen/a.crt -K /etc/pen/a.key 443 10.0.0.1", "certificates = \"/etc/pen\"";
        CaFile: "file", "authorities of clients", Keys("`tls.client-certificates.ca`, with `-R`"),
            "-E /etc/pen/a.pem -R -G /etc/pen-ca/ca.pem 443 10.0.0.1", "client-certificates = { ca = \"/etc/pen-ca/ca.pem\" }";
        CaDirectory: "dir", "the same as a directory", Keys("`tls.client-certificates.ca`, with `-R`"),
            "-E /etc/pen/a.pem -R -A /etc/pen-ca 443 10.0.0.1", "client-certificates = { ca = \"/etc/pen-ca\" }";
        SslCompat: "", "SSL_OP_ALL", Gone("rustls has no faults of old clients to work around"),
            "-Z -E /etc/pen/a.pem 443 10.0.0.1", "dropped: -Z: rustls";
        RequirePeer: "", "clients must show a certificate", Keys("`tls.client-certificates`"),
            "-E /etc/pen/a.pem -R -G /etc/pen-ca/ca.pem 443 10.0.0.1", "client-certificates = {";
        SslProtocol: "protocol", "version of SSL", Gone("TLS 1.2 and 1.3 are served; older versions are broken"),
            "-L tls1 -E /etc/pen/a.pem 443 10.0.0.1", "dropped: -L tls1: TLS 1.2";
    }

    /// The option with this letter.
    pub(crate) fn of(letter: char) -> Option<Self> {
        let mut room = [0; 4];
        letter.encode_utf8(&mut room).parse().ok()
    }

    pub(crate) const fn has_argument(self) -> bool {
        !self.row().argument.is_empty()
    }
}
