#!/bin/sh
# Writes the messages and the gRPC service anew from peer.proto. protoc is that
# of grpcio-tools, pinned here; the plugins are pinned in
# cmd/internal/tools/go.mod. `make generate` runs this.
set -eu

cd "$(dirname "$0")/../.."
root=$PWD
module=github.com/yardmaster/yardmaster
version=1.85.1
tools=${XDG_CACHE_HOME:-$HOME/.cache}/yardmaster/grpcio-tools-$version

if ! "$tools/bin/python" -c 'import grpc_tools' 2>/dev/null; then
	python3 -m venv "$tools"
	"$tools/bin/pip" install --quiet --disable-pip-version-check "grpcio-tools==$version"
fi

plugins=$(mktemp -d)
trap 'rm -rf "$plugins"' EXIT
for plugin in google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc; do
	go build -modfile="$root/cmd/internal/tools/go.mod" -o "$plugins/" "$plugin"
done

PATH=$plugins:$PATH "$tools/bin/python" -m grpc_tools.protoc -I. \
	--go_out=. --go_opt=module=$module \
	--go-grpc_out=. --go-grpc_opt=module=$module \
	raftstore/peer/peer.proto
