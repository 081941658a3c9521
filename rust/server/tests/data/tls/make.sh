#!/bin/sh
# Makes the certificates of the TLS tests again, valid from 2020 to 2120. The keys protect nothing.
set -eu
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
touch "$work/index"
cat > "$work/ca.cnf" <<EOF
[ca]
default_ca = made
[made]
new_certs_dir = $work
database = $work/index
default_md = sha256
rand_serial = yes
policy = any
unique_subject = no
[any]
commonName = supplied
[authority]
basicConstraints = critical,CA:TRUE
keyUsage = critical,keyCertSign
subjectKeyIdentifier = hash
[serverAuth]
extendedKeyUsage = serverAuth
subjectAltName = DNS:localhost,IP:127.0.0.1
authorityKeyIdentifier = keyid
[clientAuth]
extendedKeyUsage = clientAuth
authorityKeyIdentifier = keyid
EOF

# NAME EXTENSIONS SIGNER: a key, and a certificate that is valid for a century.
certificate() {
    openssl genpkey -quiet -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1.key"
    openssl req -new -key "$1.key" -subj "/CN=$1" -out "$work/$1.csr"
    openssl ca -batch -notext -config "$work/ca.cnf" -extensions "$2" -startdate 20200101000000Z \
        -enddate 21200101000000Z -in "$work/$1.csr" -out "$1.pem" $3 2> "$work/log" || cat "$work/log"
}
certificate authority authority "-selfsign -keyfile authority.key"
signer="-cert authority.pem -keyfile authority.key"
certificate server serverAuth "$signer"
certificate renewed serverAuth "$signer"
certificate client clientAuth "$signer"
certificate stranger clientAuth "-selfsign -keyfile stranger.key"
openssl pkcs8 -topk8 -in server.key -passout pass:frizzen -out encrypted.key
openssl ec -in server.key -aes128 -passout pass:frizzen -out encrypted-sec1.key
rm authority.key
