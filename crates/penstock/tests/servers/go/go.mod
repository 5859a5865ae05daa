module penstock.test/sshserver

go 1.24

require github.com/gliderlabs/ssh v0.3.8

require (
	github.com/anmitsu/go-shlex v0.0.0-20200514113438-38f4b401e2be // indirect
	golang.org/x/crypto v0.31.0 // indirect
	golang.org/x/sys v0.28.0 // indirect
)
