//go:build tools

// Package grpcurl names the command-line client of gRPC that the tests run.
package grpcurl

import _ "github.com/fullstorydev/grpcurl/cmd/grpcurl"
