#!/bin/sh
sed -i 's/colour: red/colour: green/' "$1"
