# bash completion of kvtwin. Printed by `kvtwin completion bash`.
_kvtwin_words() {
  case $1 in
    @BRANCHES@
    *) return 1 ;;
  esac
}
_kvtwin() {
  local current=${COMP_WORDS[COMP_CWORD]} path='' word commands='' options=''
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    [[ $word != -* ]] && _kvtwin_words "${path:+$path }$word" && path=${path:+$path }$word
  done
  _kvtwin_words "$path"
  if [[ $current == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$options" -- "$current")
    [[ ${COMPREPLY[*]} != *= ]] || compopt -o nospace
  else
    mapfile -t COMPREPLY < <(compgen -W "$commands" -- "$current")
  fi
}
complete -o default -F _kvtwin kvtwin
