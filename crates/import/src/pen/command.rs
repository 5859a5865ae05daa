//! The commands of penctl, which are also the lines of Pen's files and what `-O` takes. A new variant does not compile
//! until `row` and `Reader::command` decide about it.

use super::row::rows;

text::words! {
    /// A command of penctl.
    pub(crate) enum Command: "command of Pen" {
        AbortOnError = "abort_on_error",
        Acl = "acl",
        Ascii = "ascii",
        Blacklist = "blacklist",
        Block = "block",
        ClientAcl = "client_acl",
        ClientsMax = "clients_max",
        Close = "close",
        ConnMax = "conn_max",
        Connection = "connection",
        Control = "control",
        ControlAcl = "control_acl",
        Debug = "debug",
        DelayedForward = "delayed_forward",
        DsrIf = "dsr_if",
        DsrIp = "dsr_ip",
        Dummy = "dummy",
        Epoll = "epoll",
        Exit = "exit",
        Hash = "hash",
        Http = "http",
        IdleTimeout = "idle_timeout",
        Idlers = "idlers",
        Include = "include",
        Keepalive = "keepalive",
        Kqueue = "kqueue",
        Listen = "listen",
        Log = "log",
        Mode = "mode",
        No = "no",
        Peek = "peek",
        PendingMax = "pending_max",
        Pid = "pid",
        Poll = "poll",
        Prio = "prio",
        Recent = "recent",
        RoundRobin = "roundrobin",
        Select = "select",
        Server = "server",
        Servers = "servers",
        Socket = "socket",
        Source = "source",
        SslCiphers = "ssl_ciphers",
        SslRenegotiation = "ssl_client_renegotiation_interval",
        SslOcsp = "ssl_ocsp_response",
        SslOption = "ssl_option",
        SslNames = "ssl_sni_path",
        Status = "status",
        Stubborn = "stubborn",
        TarpitAcl = "tarpit_acl",
        TcpFastclose = "tcp_fastclose",
        TcpNodelay = "tcp_nodelay",
        Timeout = "timeout",
        Tracking = "tracking",
        Transparent = "transparent",
        WebStats = "web_stats",
        Weight = "weight",
        Write = "write",
    }
}

text::words! {
    /// What follows `server N`.
    pub(crate) enum ServerWord: "setting of a server of Pen" {
        Acl = "acl",
        Address = "address",
        Port = "port",
        Max = "max",
        Hard = "hard",
        Blacklist = "blacklist",
        Weight = "weight",
        Prio = "prio",
    }
}

text::words! {
    /// What follows `ssl_option`.
    pub(crate) enum SslWord: "ssl_option of Pen" {
        NoSslv2 = "no_sslv2",
        NoSslv3 = "no_sslv3",
        NoTlsv1 = "no_tlsv1",
        NoTlsv11 = "no_tlsv1.1",
        NoTlsv12 = "no_tlsv1.2",
        ServerPreference = "cipher_server_preference",
    }
}

text::words! {
    /// What follows `no`.
    pub(crate) enum NoWord: "word after `no` in Pen" {
        AbortOnError = "abort_on_error",
        Acl = "acl",
        Ascii = "ascii",
        Block = "block",
        DelayedForward = "delayed_forward",
        Dummy = "dummy",
        Hash = "hash",
        Http = "http",
        Keepalive = "keepalive",
        Log = "log",
        Peek = "peek",
        Prio = "prio",
        RoundRobin = "roundrobin",
        Stubborn = "stubborn",
        TcpNodelay = "tcp_nodelay",
        Transparent = "transparent",
        WebStats = "web_stats",
        Weight = "weight",
    }
}

impl Command {
    // An example that does not say where Pen listens is for a Pen with `-E /etc/pen/a.pem 443 10.0.0.1`.
    rows! {
        AbortOnError: "", "abort() at an error", Gone("an aid for finding faults in Pen"),
            "abort_on_error", "dropped: pen.cfg:1: an aid";
        Acl: "N permit\\|deny ADDRESS [MASK]", "an entry of an access list; `country CC` in place of the address", Keys("`[acl.list-N]`; a country is `country:CC`, and needs a `database` of `[geoip]`, which you add"),
            "client_acl 1\nacl 1 permit 10.0.0.0 255.0.0.0", "entries = [\"permit 10.0.0.0/8\"]";
        Ascii: "", "dumps as text", Elsewhere("`penstock ctl capture` writes the bytes of sessions into a file, and `tshark -r FILE -x` shows them"),
            "ascii", "dropped: pen.cfg:1: `penstock ctl capture`";
        Blacklist: "[T]", "as `-b`", Keys("`passive`"),
            "blacklist 7", "ejection = \"7s\"";
        Block: "", "in the manual, but not in Pen", Gone("Pen has no such command: it ignores the line too"),
            "block", "dropped: pen.cfg:1: Pen has no such command";
        ClientAcl: "[N]", "the list for clients; 0 without it", Keys("`acl` of the listener"),
            "client_acl 1\nacl 1 deny 10.0.0.1", "acl = \"list-1\"";
        ClientsMax: "[N]", "as `-c`", Keys("`sticky.entries`"),
            "clients_max 4096", "entries = 4096";
        Close: "N", "ends a connection", Elsewhere("it is for a running Pen; `penstock ctl kill ID`"),
            "close 1", "dropped: pen.cfg:1: it is for a running Pen";
        ConnMax: "[N]", "as `-x`", Keys("`max-connections`"),
            "conn_max 77", "max-connections = 77";
        Connection: "N", "shows a connection", Elsewhere("it is for a running Pen; `penstock ctl sessions`"),
            "connection 1", "dropped: pen.cfg:1: it is for a running Pen";
        Control: "", "shows the control port", Elsewhere("it is for a running Pen; `penstock ctl status`"),
            "control", "dropped: pen.cfg:1: it is for a running Pen";
        ControlAcl: "[N]", "the list for the control port; 0 without it",
            Needless("the control socket is a Unix socket, which the network cannot reach: control.operators and control.readers name users and groups"),
            "control_acl 2", "dropped: pen.cfg:1: the control socket";
        Debug: "[N]", "debug messages", Elsewhere("`penstock ctl log-level debug`, or PENSTOCK_LOG=debug from the start"),
            "debug 2", "dropped: pen.cfg:1: `penstock ctl log-level debug`";
        DelayedForward: "", "in the manual, but not in Pen", Gone("Pen has no such command: it ignores the line too"),
            "delayed_forward", "dropped: pen.cfg:1: Pen has no such command";
        DsrIf: "IF", "direct server return", Keys("`protocol = \"dsr\"` and `interface` of the listener: see [dsr.md](dsr.md)"),
            "dsr_if eth1", "protocol = \"dsr\"\ninterface = \"eth1\"";
        DsrIp: "IP", "stored and never read", Gone("Pen never reads it"),
            "dsr_ip 10.0.0.1", "dropped: pen.cfg:1: Pen never reads it";
        Dummy: "", "a test web server in place of servers", Gone("a balancer serves no pages of its own, so the servers get the requests; `penstock demo` has backends to try things on"),
            "dummy", "changed: pen.cfg:1: a balancer serves no pages";
        Epoll: "", "epoll", Needless("epoll is always used"),
            "epoll", "dropped: pen.cfg:1: epoll";
        Exit: "", "ends Pen", Elsewhere("it is for a running Pen; `penstock ctl stop`"),
            "exit", "dropped: pen.cfg:1: it is for a running Pen";
        Hash: "", "as `-h`", Keys("`balance = \"hash\"`"),
            "hash", "balance = \"hash\"";
        Http: "", "as `-H`", Keys("`protocol = \"http\"`"),
            "http", "protocol = \"http\"";
        IdleTimeout: "[N]", "seconds of silence that end a connection; 0 is none",
            Keys("`idle-timeout` of the listener; with `http` `timeouts.idle`"),
            "idle_timeout 90", "idle-timeout = \"90s\"";
        Idlers: "[N]", "idle connections to servers, a test feature",
            Gone("idle connections for no client only load the backends"),
            "idlers 3", "dropped: pen.cfg:1: idle connections";
        Include: "FILE", "another file", Keys("its commands are translated as well; here `include` takes several files, with `*`"),
            "include /etc/pen.cfg", "ejection = \"7s\"";
        Keepalive: "", "SO_KEEPALIVE to servers", Keys("`tcp-keepalive` of the pool, with the two hours of the kernel"),
            "keepalive", "tcp-keepalive = \"2h\"";
        Kqueue: "", "kqueue", Needless("epoll is always used"),
            "kqueue", "dropped: pen.cfg:1: epoll";
        Listen: "[[addr:]port]", "where Pen listens", Keys("`bind` of the listener"),
            "listen 127.0.0.1:81\nserver 0 address 10.0.0.1 port 80", "bind = \"127.0.0.1:81\"";
        Log: "[FILE]", "as `-l`", Keys("`target` of `[access-log]`, or `penstock ctl set access-log.target` while it serves"),
            "log /var/log/pen.log", "target = \"/var/log/pen.log\"";
        Mode: "", "shows switches", Elsewhere("it is for a running Pen; `penstock ctl show`"),
            "mode", "dropped: pen.cfg:1: it is for a running Pen";
        No: "WORD", "turns a switch off, empties a list, ends a log", Keys("as if the switch were not given"),
            "roundrobin\nno roundrobin\nserver 1 address 10.0.0.2 port 80", "balance = \"sticky\"";
        Peek: "", "half-built", Gone("in Pen no connection ever leaves that state"),
            "peek", "dropped: pen.cfg:1: in Pen no connection";
        PendingMax: "N", "connections that are being opened", Needless("`max-connections` limits them with all others"),
            "pending_max 9", "dropped: pen.cfg:1: `max-connections`";
        Pid: "", "shows the process id", Elsewhere("it is for a running Pen; `penstock ctl status`"),
            "pid", "dropped: pen.cfg:1: it is for a running Pen";
        Poll: "", "poll()", Needless("epoll is always used"),
            "poll", "dropped: pen.cfg:1: epoll";
        Prio: "", "the servers of the lowest priority number first", Keys("`priority` of the backends"),
            "prio\nserver 1 address 10.0.0.2 port 80 prio 3", "priority = 3";
        Recent: "[N]", "shows clients of the last N seconds",
            Elsewhere("it is for a running Pen; `penstock ctl clients --within 300s`: the latest first, each with the time since it was seen"),
            "recent 60", "dropped: pen.cfg:1: it is for a running Pen";
        RoundRobin: "", "as `-r`", Keys("`balance = \"round-robin\"`"),
            "roundrobin\nserver 1 address 10.0.0.2 port 80", "balance = \"round-robin\"";
        Select: "", "select()", Needless("epoll is always used"),
            "select", "dropped: pen.cfg:1: epoll";
        Server: "N WORD VALUE ...", "a server: `address`, `port`, `max`, `hard`, `weight`, `prio`, `acl`, `blacklist`",
            Keys("an entry of `backends`; `blacklist` is `penstock ctl drain BACKEND --for TIME`"),
            "listen 81\nserver 0 address fd00::1 port 80", "backends = [\"[fd00::1]:80\"]";
        Servers: "", "shows the servers", Elsewhere("it is for a running Pen; `penstock ctl backends`"),
            "servers", "dropped: pen.cfg:1: it is for a running Pen";
        Socket: "N", "shows a descriptor", Elsewhere("it is for a running Pen; `penstock ctl status`"),
            "socket 4", "dropped: pen.cfg:1: it is for a running Pen";
        Source: "IP", "own address towards servers", Keys("`source-address` of the pool"),
            "source 10.0.0.7", "source-address = \"10.0.0.7\"";
        SslCiphers: "LIST", "ciphers, in the syntax of OpenSSL",
            Keys("`tls.ciphers`, if all are names of ciphers that we have; else the default, which is safe"),
            "ssl_ciphers ECDHE-RSA-AES256-GCM-SHA384:ECDHE-RSA-AES128-GCM-SHA256", "ciphers = [\"ECDHE-RSA-AES256-GCM-SHA384\", \"ECDHE-RSA-AES128-GCM-SHA256\"]";
        SslRenegotiation: "S", "pause between renegotiations",
            Needless("renegotiation is not supported, so it needs no limit"),
            "ssl_client_renegotiation_interval 60", "dropped: pen.cfg:1: renegotiation";
        SslOcsp: "FILE", "OCSP response",
            Needless("responses are fetched and renewed; `NAME.ocsp` beside a certificate is sent too"),
            "ssl_ocsp_response /etc/pen/a.ocsp", "dropped: pen.cfg:1: responses are fetched";
        SslOption: "WORD", "`no_sslv2`, `no_sslv3`, `no_tlsv1`, `no_tlsv1.1`: always so; `no_tlsv1.2`, `cipher_server_preference`",
            Keys("`tls.min-version`, `tls.cipher-order`"),
            "ssl_option no_tlsv1.2", "min-version = \"1.3\"";
        SslNames: "DIR", "certificates by server name", Keys("`tls.certificates`: the same files, watched"),
            "ssl_sni_path /etc/pen", "certificates = \"/etc/pen\"";
        Status: "", "shows the status page", Elsewhere("it is for a running Pen; `penstock ctl status`, and `/status.html` of `[admin]`"),
            "status", "dropped: pen.cfg:1: it is for a running Pen";
        Stubborn: "", "as `-s`", Keys("`retries = 0`"),
            "stubborn\nserver 1 address 10.0.0.2 port 80", "retries = 0";
        TarpitAcl: "[N]", "addresses that answer and never serve, with `dsr_if`", Keys("`tarpit-networks` and `tarpit-rate` of the dsr listener: only addresses that no machine has"),
            "acl 3 permit 10.9.0.0 255.255.255.0\ndsr_if eth1\ntarpit_acl 3", "tarpit-networks = [\"10.9.0.0/24\"]";
        TcpFastclose: "up\\|down\\|both\\|off", "a side that closes ends both directions",
            Keys("`fast-close` of the listener"),
            "tcp_fastclose both", "fast-close = \"both\"";
        TcpNodelay: "", "TCP_NODELAY", Needless("always so"),
            "tcp_nodelay", "dropped: pen.cfg:1: always so";
        Timeout: "[N]", "as `-t`", Keys("`timeouts.connect`"),
            "timeout 9", "connect = \"9s\"";
        Tracking: "[N]", "as `-T`", Keys("`sticky.ttl`"),
            "tracking 60", "ttl = \"60s\"";
        Transparent: "", "the client's address towards servers, IPv4 only",
            Keys("`source-address = \"client\"` of the pool, with IPv6 too"),
            "transparent", "source-address = \"client\"";
        WebStats: "[FILE]", "as `-w`", Elsewhere("`/status.html` of `[admin]`"),
            "web_stats /tmp/pen.html", "dropped: pen.cfg:1: `/status.html`";
        Weight: "", "as `-W`", Keys("`weight` of the backends"),
            "weight\nserver 1 address 10.0.0.2 port 80 weight 3", "weight = 3";
        Write: "[FILE]", "writes the state as a file",
            Elsewhere("it is for a running Pen; `penstock ctl save` writes live changes into the file, with its comments"),
            "write /etc/pen.cfg", "dropped: pen.cfg:1: it is for a running Pen";
    }
}
