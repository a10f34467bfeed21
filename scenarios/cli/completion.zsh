#compdef kvtwin
# zsh completion of kvtwin. Printed by `kvtwin completion zsh`.
_kvtwin_words() {
  case $1 in
    @BRANCHES@
    *) return 1 ;;
  esac
}
_kvtwin() {
  local trail='' word commands='' options=''
  for word in ${words[2,CURRENT-1]}; do
    [[ $word != -* ]] && _kvtwin_words "${trail:+$trail }$word" && trail=${trail:+$trail }$word
  done
  _kvtwin_words "$trail"
  if [[ $PREFIX == -* ]]; then
    compadd -S '' -- ${(M)=options:#*=}
    compadd -- ${=options:#*=}
  else
    compadd -- ${=commands}
    _files
  fi
}
_kvtwin "$@"
