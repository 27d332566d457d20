# newcomer.sh WAY    what README says, on a machine that has Docker and no compiler, and how long it takes
#
# WAY is pip or deb. /dist has what `make dist` made; the image is made of this root file system.
set -euo pipefail

say() { echo "newcomer: $*"; }

rm -rf /engine /opt/vgpurun
mkdir -p /engine
rm -rf /var/run/docker*
dockerd --data-root /engine/data --exec-root /engine/exec --bridge=none --iptables=false --ip6tables=false \
  >/engine/log 2>&1 &
for _ in $(seq 300); do [ -S /var/run/docker.sock ] && docker version >/dev/null 2>&1 && break; sleep 0.1; done
tar -C / --one-file-system --exclude=./engine --exclude=./dist --exclude=./var/cache --exclude='./*/docker*' -c . |
  docker import - system >/dev/null
! command -v cc gcc clang make || exit 1

began=$(date +%s%N)
case $1 in
  pip)
    python3 -m venv /opt/vgpurun
    /opt/vgpurun/bin/pip install -qq --find-links /dist vgpurun
    PATH=/opt/vgpurun/bin:$PATH
    ;;
  deb)
    dpkg --install /dist/*_"$(dpkg --print-architecture)".deb
    ;;
esac
say "installed: $(vgpurun --version), $(command -v vgpurun)"
shown=$(vgpurun --driver sim --mem 2g --sm 50 system nvidia-smi)
say "a container under limits after $((($(date +%s%N) - began) / 1000000)) ms"
grep -q '/ *2048MiB' <<<"$shown"

# Tries it as a user who is not root, but may use the engine.
id somebody >/dev/null 2>&1 || useradd --create-home --groups docker somebody
cat >/tmp/as_somebody <<'END'
set -euo pipefail
vgpurun --driver sim --mem 2g --sm 50 system nvidia-smi | grep -q '/ *2048MiB'
vgpurun local --driver sim --mem 1g -- nvidia-smi | grep -q '/ *1024MiB'
vgpurun free --driver sim
vgpurun doctor --driver sim
END
su somebody -c "PATH=$PATH bash /tmp/as_somebody"
vgpurun verify --driver sim --mem 2g --seconds 0.5

if [ "$1" = deb ]; then
  docker vgpurun --version
  man_page=/usr/share/man/man1/vgpurun.1.gz
  for file in $man_page /usr/share/bash-completion/completions/vgpurun /usr/lib/systemd/system/vgpurun-exporter.service \
    /usr/lib/systemd/system/vgpurun-guard.service /usr/lib/tmpfiles.d/vgpurun.conf /etc/vgpurun/config.yaml /usr/share/doc/vgpurun/examples/lab.yaml; do
    [ -s $file ] || { say "$file is not there"; exit 1; }
  done
  dpkg --verify vgpurun
  dpkg --purge vgpurun
  left=$(find / -xdev -path /engine -prune -o -path /dist -prune -o -path /tmp -prune -o -path /proc -prune -o -name '*vgpurun*' -print | grep -v '^/var/lib/dpkg\|^/var/log' || true)
  say "left behind: ${left//$'\n'/ }"
fi
